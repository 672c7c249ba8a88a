// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/engine_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/traceparent.h"
#include "common/base/units.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "engine/rpc/generate_stream.h"

namespace swiftcache::engine::rpc {
namespace {

constexpr size_t kChunkBytes = 1 * kMiB;

/// A call that is refused before it begins.
class GenerateRefusal final : public grpc::ServerWriteReactor<v1::EngineGenerateResponse> {
 public:
  explicit GenerateRefusal(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

/// The card, chunk after chunk; deletes itself when the call is over, as gRPC's reactors do.
class CardStream final : public grpc::ServerWriteReactor<v1::GetModelCardResponse> {
 public:
  /// Sends no data where the client has the card.
  CardStream(const SerializedCard& card, bool known) : card_(card), offset_(known ? card.bytes.size() : 0) { Next(); }
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

grpc::ServerWriteReactor<v1::EngineGenerateResponse>* EngineDoor::Generate(grpc::CallbackServerContext* context,
                                                                           const v1::EngineGenerateRequest* request) {
  const std::string traceparent = ParseTraceparent(ClientMetadata(*context, "traceparent"));
  exec::Engine* const engine = engine_;
  absl::StatusOr<exec::Request> plain = engine == nullptr ? absl::UnavailableError("the engine is starting; try again")
                                                          : ToRequest(*request, limits_, random_);
  if (!plain.ok()) {
    const std::string id = request->request_id().substr(0, limits_.max_request_id_bytes);  // it may be what is wrong
    LogRefusal({id, traceparent}, plain.status());
    if (engine != nullptr) engine->CountRefusal(plain.status());
    return new GenerateRefusal(plain.status());
  }
  plain->traceparent = traceparent;
  auto stream = std::make_shared<GenerateStream>(*engine);
  stream->Start(*std::move(plain));
  return stream.get();
}

grpc::ServerWriteReactor<v1::GetModelCardResponse>* EngineDoor::GetModelCard(grpc::CallbackServerContext*,
                                                                             const v1::GetModelCardRequest* request) {
  return new CardStream(card_, request->known_hash() == card_.hash);
}

}  // namespace swiftcache::engine::rpc
