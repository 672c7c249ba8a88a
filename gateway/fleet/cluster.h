// SPDX-License-Identifier: Apache-2.0
// What the broker tells the gateway about the cluster, in plain structs. BrokerWatcher (gateway/rpc) follows the broker
// and calls a ClusterSink.
//
//   sink.OnSnapshot("broker-7f", {{.info = {.name = "chat", .model_name = "m"}}});
//   sink.OnUpdate(status);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace swiftcache::gateway::fleet {

/// Meaning as proto EngineState.
enum class EngineState { kUnspecified, kStarting, kReady, kDraining, kStalled };

/// "STARTING", "READY", ...
const char* Name(EngineState state);

struct EngineInfo {
  std::string name;         // unique in the cluster
  std::string instance_id;  // unique per process
  std::string model_name;
  std::string address;  // host:port; empty while starting
  int64_t max_model_len_tokens = 0;
  std::string model_card_hash;
  EngineState state = EngineState::kUnspecified;

  bool operator==(const EngineInfo&) const = default;
};

struct RoutingLoad {
  int64_t running_requests = 0, waiting_requests = 0;
};

struct EngineStatus {
  EngineInfo info;
  RoutingLoad load;
};

/// Receives the state of the cluster and its changes, in order. Called by one thread at a time; must not block.
class ClusterSink {
 public:
  virtual ~ClusterSink() = default;
  /// The whole table as the broker process `incarnation` knows it.
  virtual void OnSnapshot(const std::string& incarnation, std::vector<EngineStatus> engines) = 0;
  virtual void OnUpdate(EngineStatus engine) = 0;
  /// `died`: it missed its heartbeats; otherwise it deregistered, and may still finish its requests.
  virtual void OnRemoved(const std::string& engine_name, bool died) = 0;
  /// The broker is not heard any more; what it said holds until the next snapshot.
  virtual void OnBrokerLost() = 0;
};

}  // namespace swiftcache::gateway::fleet
