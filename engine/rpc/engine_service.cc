// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/engine_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/rpc/server.h"
#include "common/rpc/stream_writer.h"
#include "engine/rpc/generate_stream.h"

namespace swiftcache::engine::rpc {
namespace {

constexpr size_t kChunkBytes = kMiB;  // of each call one is in memory, twice; smaller ones take more round trips

absl::Status Closed() { return absl::UnavailableError("the engine has drained and ends: use another"); }

/// The card, chunk after chunk, each made when the one before has been taken. Thread-safety: safe. Ownership: the
/// call's under way (`self_`, until OnDone); borrows what it is made of.
class CardStream final : public StreamWriter<v1::GetModelCardResponse>,
                         public std::enable_shared_from_this<CardStream> {
 public:
  /// `calls`: null where the client has the card, which then gets no data; else one of them is this call.
  CardStream(const SerializedCard& card, const std::string& instance_id, std::atomic<int>* calls)
      : card_(card), instance_id_(instance_id), calls_(calls), offset_(calls == nullptr ? card.bytes.size() : 0) {}

  void Start() ABSL_LOCKS_EXCLUDED(mutex_) {
    self_ = shared_from_this();
    {
      absl::MutexLock lock(&mutex_);
      pending_.emplace_back();
    }
    Advance();
  }
  void OnDone() override {
    if (calls_ != nullptr) --*calls_;  // not later: an alarm may keep this for longer than the door lives
    self_.reset();                     // may delete this
  }

 private:
  void OnReaderGone() override { Drop(absl::CancelledError("the client cancelled, or is gone")); }
  void OnNext(v1::GetModelCardResponse& chunk) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    chunk.set_instance_id(instance_id_);
    chunk.set_hash(card_.hash);
    chunk.set_total_bytes(static_cast<int64_t>(card_.bytes.size()));
    chunk.set_data(card_.bytes.substr(offset_, kChunkBytes));
    offset_ += chunk.data().size();
    if (offset_ < card_.bytes.size()) {
      pending_.emplace_back();
    } else {
      end_ = absl::OkStatus();
    }
  }

  const SerializedCard& card_;
  const std::string& instance_id_;
  std::atomic<int>* const calls_;
  size_t offset_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CardStream> self_;
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
  stream->CutIfStalled(*context, submitter_->limits().stall_timeout, stream);
  stream->Start(*std::move(plain));
  return stream.get();
}

grpc::ServerBidiReactor<Counted<v1::GenerateManyRequest>, v1::GenerateManyResponse>* EngineDoor::OpenStream(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<GenerateManyStream>(submitter_, [this](GenerateManyStream* ended) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(ended);
  });
  stream->CutIfStalled(*context, submitter_->limits().stall_timeout, stream);
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

grpc::ServerWriteReactor<v1::GetModelCardResponse>* EngineDoor::GetModelCard(grpc::CallbackServerContext* context,
                                                                             const v1::GetModelCardRequest* request) {
  const bool known = request->known_hash() == card_.hash;  // as who asks whether the engine lives says: never refused
  if (!known && ++card_calls_ > kMaxCardCalls) {
    --card_calls_;
    return new RefusedStream<v1::GetModelCardResponse>(absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxCardCalls, " calls fetch the model card; try again when some have ended")));
  }
  auto stream = std::make_shared<CardStream>(card_, instance_id_, known ? nullptr : &card_calls_);
  stream->CutIfStalled(*context, submitter_->limits().stall_timeout, stream);
  stream->Start();
  return stream.get();
}

}  // namespace swiftcache::engine::rpc
