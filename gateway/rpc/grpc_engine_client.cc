// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/grpc_engine_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/traceparent.h"
#include "common/rpc/callback_pulse.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gateway/rpc/card_convert.h"
#include "gateway/rpc/convert.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::gateway::rpc {
namespace {

constexpr int64_t kMaxCardBytes = int64_t{1} << 30;

// One Generate call. Owns itself until gRPC's OnDone; handles share it, so that a late Cancel finds a context.
class Stream final : public grpc::ClientReadReactor<v1::EngineGenerateResponse> {
 public:
  Stream(const fleet::EngineRequest& request, std::shared_ptr<fleet::EngineObserver> observer)
      : request_(rpc::ToProto(request)), observer_(std::move(observer)) {
    // gRPC aborts the process on invalid metadata, so only checked values go there.
    const std::string traceparent = ParseTraceparent(request.traceparent);
    if (!traceparent.empty()) context_.AddMetadata("traceparent", traceparent);
    SetDeadline(context_, request.deadline);
  }

  static void Start(const std::shared_ptr<Stream>& stream, v1::EngineService::Stub& stub) {
    stream->self_ = stream;
    stub.async()->Generate(&stream->context_, &stream->request_, stream.get());
    stream->StartRead(&stream->response_);
    stream->StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    observer_->OnEvent(rpc::ToPlain(response_));
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    std::exchange(observer_, nullptr)->OnDone(FromGrpc(status));
  }

  void Cancel() { context_.TryCancel(); }

 private:
  std::shared_ptr<Stream> self_;
  grpc::ClientContext context_;
  const v1::EngineGenerateRequest request_;
  v1::EngineGenerateResponse response_;
  std::shared_ptr<fleet::EngineObserver> observer_;
};

class Handle final : public fleet::EngineCall {
 public:
  explicit Handle(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void Cancel() override { stream_->Cancel(); }

 private:
  const std::shared_ptr<Stream> stream_;
};

class Client final : public GrpcEngineClient {
 public:
  explicit Client(const Options& options)
      : options_(options),
        channel_(CreateRpcChannel(options.address, {.keepalive = options.keepalive})),
        stub_(v1::EngineService::NewStub(channel_)) {
    channel_->GetState(/*try_to_connect=*/true);
  }

  std::unique_ptr<fleet::EngineCall> Generate(const fleet::EngineRequest& request,
                                              std::shared_ptr<fleet::EngineObserver> observer) override {
    auto stream = std::make_shared<Stream>(request, std::move(observer));
    Stream::Start(stream, *stub_);
    return std::make_unique<Handle>(std::move(stream));
  }

  absl::StatusOr<fleet::ModelCard> FetchModelCard(absl::Duration timeout) override;
  absl::Status Ping(absl::Duration timeout) override;

 private:
  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::EngineService::Stub> stub_;
};

absl::StatusOr<fleet::ModelCard> Client::FetchModelCard(absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  auto reader = stub_->GetModelCard(&context, v1::GetModelCardRequest());
  v1::GetModelCardResponse chunk;
  std::string bytes;
  while (reader->Read(&chunk)) {
    bytes += chunk.data();
    if (static_cast<int64_t>(bytes.size()) > std::min(chunk.total_bytes(), kMaxCardBytes)) {
      context.TryCancel();
      return absl::DataLossError(absl::StrCat("model card from ", options_.address, ": more than the ",
                                              chunk.total_bytes(), " bytes announced, wants at most ", kMaxCardBytes));
    }
  }
  if (grpc::Status status = reader->Finish(); !status.ok()) return FromGrpc(status);
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
  if (response.hash() == options_.card_hash) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("engine at ", options_.address, ": its model card is ", response.hash(),
                                          ", wanted ", options_.card_hash, ": another model is there now"));
}

}  // namespace

std::unique_ptr<GrpcEngineClient> GrpcEngineClient::Create(const Options& options) {
  CallbackPulse::KeepThreads();
  return std::make_unique<Client>(options);
}

}  // namespace swiftcache::gateway::rpc
