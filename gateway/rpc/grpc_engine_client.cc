// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/grpc_engine_client.h"

#include <grpcpp/client_context.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/callback_pulse.h"
#include "common/rpc/card_size.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gateway/rpc/card_convert.h"
#include "gateway/rpc/engine_stream.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::gateway::rpc {
namespace {

class Client final : public GrpcEngineClient {
 public:
  explicit Client(const Options& options)
      : options_(options),
        channel_(CreateRpcChannel(options.address, {.keepalive = options.keepalive})),
        stub_(v1::EngineService::NewStub(channel_)) {
    channel_->GetState(/*try_to_connect=*/true);
  }
  ~Client() override {
    if (stream_ != nullptr) stream_->CloseWhenIdle();
  }

  std::unique_ptr<fleet::EngineCall> Generate(const fleet::EngineRequest& request,
                                              std::shared_ptr<fleet::EngineObserver> observer) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<fleet::ModelCard> FetchModelCard(absl::Duration timeout) override;
  absl::Status Ping(absl::Duration timeout) override;

 private:
  /// The stream of the moment, or a new one in place of `over`; `created`: the caller has to start it.
  std::shared_ptr<EngineStream> StreamAfter(const std::shared_ptr<EngineStream>& over, bool& created)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::EngineService::Stub> stub_;
  absl::Mutex mutex_;
  std::shared_ptr<EngineStream> stream_ ABSL_GUARDED_BY(mutex_);  // null before the first request
};

std::shared_ptr<EngineStream> Client::StreamAfter(const std::shared_ptr<EngineStream>& over, bool& created) {
  absl::MutexLock lock(&mutex_);
  created = stream_ == over;
  if (created) stream_ = std::make_shared<EngineStream>(*stub_, options_.model_name, options_.card_hash);
  return stream_;
}

std::unique_ptr<fleet::EngineCall> Client::Generate(const fleet::EngineRequest& request,
                                                    std::shared_ptr<fleet::EngineObserver> observer) {
  std::shared_ptr<EngineStream> stream;
  for (;;) {
    bool created = false;
    stream = StreamAfter(stream, created);
    std::unique_ptr<fleet::EngineCall> call = stream->Begin(request, observer);
    if (created) stream->Start();
    if (call != nullptr) return call;
  }
}

absl::StatusOr<fleet::ModelCard> Client::FetchModelCard(absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  auto reader = stub_->GetModelCard(&context, v1::GetModelCardRequest());
  v1::GetModelCardResponse chunk;
  std::string bytes;
  while (reader->Read(&chunk)) {
    bytes += chunk.data();
    if (chunk.total_bytes() > kMaxCardBytes || static_cast<int64_t>(bytes.size()) > chunk.total_bytes()) {
      context.TryCancel();
      return absl::DataLossError(absl::StrCat("model card from ", options_.address, ": ", bytes.size(),
                                              " bytes have come and ", chunk.total_bytes(),
                                              " are announced, wants no more than these, and at most ", kMaxCardBytes));
    }
  }
  if (const absl::Status status = FromGrpc(reader->Finish()); !status.ok()) {
    // Whatever it is: it says nothing of the card, which another engine may have.
    return absl::UnavailableError(absl::StrCat("model card from ", options_.address, ": ", status.ToString()));
  }
  return ParseModelCard(bytes, options_.card_hash);
}

// The response for a card that is known already is one short message.
absl::Status Client::Ping(absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::GetModelCardRequest request;
  request.set_known_hash(options_.card_hash);
  auto reader = stub_->GetModelCard(&context, request);
  v1::GetModelCardResponse response;
  if (!reader->Read(&response)) {
    const grpc::Status end = reader->Finish();
    return end.ok() ? absl::UnavailableError("its answer is empty, wanted its model card's hash") : FromGrpc(end);
  }
  context.TryCancel();
  reader->Finish();
  if (response.hash() != options_.card_hash) {
    return absl::NotFoundError(absl::StrCat("engine at ", options_.address, ": its model card is ", response.hash(),
                                            ", wanted ", options_.card_hash, ": another model is there now"));
  }
  if (response.instance_id() == options_.instance_id) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("engine at ", options_.address, ": instance ", response.instance_id(),
                                          " answers, wanted ", options_.instance_id, ": another process is there now"));
}

}  // namespace

std::unique_ptr<GrpcEngineClient> GrpcEngineClient::Create(const Options& options) {
  CallbackPulse::KeepThreads();
  return std::make_unique<Client>(options);
}

}  // namespace swiftcache::gateway::rpc
