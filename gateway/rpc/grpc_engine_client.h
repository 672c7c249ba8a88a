// SPDX-License-Identifier: Apache-2.0
// The client of an engine's gRPC service.
//
//   auto engine = GrpcEngineClient::Create({.address = "127.0.0.1:50061", .card_hash = hash});
//   std::unique_ptr<fleet::EngineCall> call = engine->Generate(request, observer);
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/fleet/engine_client.h"

namespace swiftcache::gateway::rpc {

/// All requests go over one stream, made by the first one and again by the first after it broke (EngineStream).
/// Thread-safety: safe. Ownership: owns a channel; calls under way keep what they need and may outlive it.
/// Errors: a connection that breaks or stays silent for two keepalive intervals ends its calls with UNAVAILABLE.
class GrpcEngineClient : public fleet::EngineClient {
 public:
  struct Options {
    std::string address;      // host:port
    std::string model_name;   // that must be served there
    std::string card_hash;    // of the card that it must have, and FetchModelCard return
    std::string instance_id;  // of the process that must answer Ping
    absl::Duration keepalive = absl::Seconds(10);
  };
  /// Connects in the background, so that the first request finds a connection.
  static std::unique_ptr<GrpcEngineClient> Create(const Options& options);
};

}  // namespace swiftcache::gateway::rpc
