// SPDX-License-Identifier: Apache-2.0
// The engine's gRPC service ("door"): checks and translates requests, submits them to the engine, streams its events
// back.
//
//   EngineDoor door({.model_name = "chat"}, std::move(card), instance_id, random);
//   ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = "127.0.0.1:50061"}, {&door}));
//   ... load ...
//   door.Open(*engine);
//   ...
//   door.CloseStreams();  // the engine has ended its requests
//   server->Stop(deadline);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/counted_service.h"
#include "engine/exec/engine.h"
#include "engine/rpc/generate_many_stream.h"
#include "engine/rpc/generate_request.h"
#include "engine/rpc/serialized_card.h"
#include "engine/rpc/submitter.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::engine::rpc {

/// UNAVAILABLE to generations until Open; the model card is served from the start.
/// Thread-safety: safe. Ownership: owns the card; borrows the engine, which outlives the server that runs this door.
/// Errors: as in engine.proto.
class EngineDoor final : public CountedService<v1::EngineService> {
 public:
  /// That get data of the model card at a time: one that nobody reads takes some 130 KB.
  static constexpr int kMaxCardCalls = 16;

  /// `random`: seeds and ids for requests without; called from any thread.
  EngineDoor(const WireLimits& limits, SerializedCard card, std::string instance_id, std::function<uint64_t()> random);
  ~EngineDoor() override { submitter_->Close(); }

  void Open(exec::Engine& engine) { submitter_->Open(engine); }
  /// Ends each GenerateMany call, new ones too, behind its last generation: the server's Stop would wait for those that
  /// are idle.
  void CloseStreams() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ServerWriteReactor<v1::EngineGenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                                 const v1::EngineGenerateRequest* request) override;
  /// Answers GenerateMany.
  grpc::ServerBidiReactor<Counted<v1::GenerateManyRequest>, v1::GenerateManyResponse>* OpenStream(
      grpc::CallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mutex_);
  grpc::ServerWriteReactor<v1::GetModelCardResponse>* GetModelCard(grpc::CallbackServerContext* context,
                                                                   const v1::GetModelCardRequest* request) override;

 private:
  const std::shared_ptr<Submitter> submitter_;  // of streams whose deadlines may pass when the server has ended, too
  const SerializedCard card_;
  const std::string instance_id_;
  std::atomic<int> card_calls_ = 0;  // of kMaxCardCalls
  absl::Mutex mutex_;
  absl::flat_hash_map<GenerateManyStream*, std::weak_ptr<GenerateManyStream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache::engine::rpc
