// SPDX-License-Identifier: Apache-2.0
// The engine's gRPC service ("door"): checks and translates requests, submits them to the engine, streams its events
// back.
//
//   EngineDoor door({.vocab_size = 49152}, std::move(card), random);
//   ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = "127.0.0.1:50061"}, {&door}));
//   ... load ...
//   door.Open(*engine);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "engine/exec/engine.h"
#include "engine/rpc/generate_request.h"
#include "engine/rpc/serialized_card.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::engine::rpc {

/// UNAVAILABLE to generations until Open; the model card is served from the start.
/// Thread-safety: safe. Ownership: owns the card; borrows the engine, which outlives the server that runs this door.
/// Errors: as in engine.proto.
class EngineDoor final : public v1::EngineService::CallbackService {
 public:
  /// `random`: seeds and ids for requests without; called from any thread.
  EngineDoor(const WireLimits& limits, SerializedCard card, std::function<uint64_t()> random)
      : limits_(limits), card_(std::move(card)), random_(std::move(random)) {}

  void Open(exec::Engine& engine) { engine_ = &engine; }

  grpc::ServerWriteReactor<v1::EngineGenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                                 const v1::EngineGenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::GetModelCardResponse>* GetModelCard(grpc::CallbackServerContext* context,
                                                                   const v1::GetModelCardRequest* request) override;

 private:
  const WireLimits limits_;
  const SerializedCard card_;
  const std::function<uint64_t()> random_;
  std::atomic<exec::Engine*> engine_ = nullptr;
};

}  // namespace swiftcache::engine::rpc
