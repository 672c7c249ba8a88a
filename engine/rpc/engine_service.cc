// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/engine_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "engine/rpc/generate_stream.h"

namespace swiftcache::engine::rpc {
namespace {

constexpr size_t kChunkBytes = 1 * kMiB;

absl::Status Closed() { return absl::UnavailableError("the engine has drained and ends: use another"); }

/// The card, chunk after chunk; deletes itself when the call is over, as gRPC's reactors do.
class CardStream final : public grpc::ServerWriteReactor<v1::GetModelCardResponse> {
 public:
  /// Sends no data where the client has the card.
  CardStream(const SerializedCard& card, const std::string& instance_id, bool known)
      : card_(card), offset_(known ? card.bytes.size() : 0) {
    chunk_.set_instance_id(instance_id);
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (ok && offset_ < card_.bytes.size()) {
      Next();
    } else {
      Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    chunk_.set_hash(card_.hash);
    chunk_.set_total_bytes(static_cast<int64_t>(card_.bytes.size()));
    chunk_.set_data(card_.bytes.substr(offset_, kChunkBytes));
    offset_ += chunk_.data().size();
    StartWrite(&chunk_);
  }

  const SerializedCard& card_;
  size_t offset_;
  v1::GetModelCardResponse chunk_;
};

}  // namespace

EngineDoor::EngineDoor(const WireLimits& limits, SerializedCard card, std::string instance_id,
                       std::function<uint64_t()> random)
    : submitter_(std::make_shared<Submitter>(limits, std::move(random))),
      card_(std::move(card)),
      instance_id_(std::move(instance_id)) {
  Count("Generate", &EngineDoor::Generate);
  Count("GenerateMany", &EngineDoor::OpenStream);
  Count("GetModelCard", &EngineDoor::GetModelCard);
}

grpc::ServerWriteReactor<v1::EngineGenerateResponse>* EngineDoor::Generate(grpc::CallbackServerContext* context,
                                                                           const v1::EngineGenerateRequest* request) {
  absl::StatusOr<exec::Request> plain = submitter_->Check(*request, ClientMetadata(*context, "traceparent"));
  if (!plain.ok()) return new RefusedStream<v1::EngineGenerateResponse>(plain.status());
  auto stream = std::make_shared<GenerateStream>(*submitter_);
  stream->Start(*std::move(plain));
  return stream.get();
}

grpc::ServerBidiReactor<Counted<v1::GenerateManyRequest>, v1::GenerateManyResponse>* EngineDoor::OpenStream(
    grpc::CallbackServerContext*) {
  auto stream = std::make_shared<GenerateManyStream>(submitter_, [this](GenerateManyStream* ended) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(ended);
  });
  bool closed = false;
  {
    absl::MutexLock lock(&mutex_);
    streams_[stream.get()] = stream;
    closed = closed_;
  }
  stream->Start();
  if (closed) stream->EndWhenIdle(Closed());
  return stream.get();
}

void EngineDoor::CloseStreams() {
  std::vector<std::shared_ptr<GenerateManyStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    for (const auto& [address, stream] : streams_) streams.push_back(stream.lock());
  }
  for (const auto& stream : streams) {
    if (stream != nullptr) stream->EndWhenIdle(Closed());
  }
}

grpc::ServerWriteReactor<v1::GetModelCardResponse>* EngineDoor::GetModelCard(grpc::CallbackServerContext*,
                                                                             const v1::GetModelCardRequest* request) {
  return new CardStream(card_, instance_id_, request->known_hash() == card_.hash);
}

}  // namespace swiftcache::engine::rpc
