// SPDX-License-Identifier: Apache-2.0
// What an engine needs to lend and lease KV memory, put together.
//
//   ASSIGN_OR_RETURN(auto sharing, EngineSharing::Create(options, device, memory, broker_client, clock, metrics));
//   engine = Engine::Create(..., sharing->parts(), ...);
//   sharing->Start([&](coordinator::LoopMessage message) { engine->Post(std::move(message)); });
//   broker.Ready(address, load, sharing->Describe());
//   ... engine->ShutDown(deadline); sharing->Stop();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "engine/backend/kv_memory.h"
#include "engine/coordinator/account_metrics.h"
#include "engine/coordinator/coordinator.h"
#include "engine/exec/engine.h"
#include "engine/exec/engine_memory.h"
#include "engine/rpc/broker_client.h"
#include "engine/rpc/lease_client.h"
#include "engine/transport/transport.h"
#include "engine/transport/transport_metrics.h"
#include "services/engine_device.h"
#include "services/engine_flags.h"

namespace swiftcache::services {

/// Thread-safety: none. Ownership: owns coordinator, transport and the broker's lease RPCs; borrows what is handed in.
class EngineSharing {
 public:
  struct Options {
    std::string name, instance_id, token;
    const EngineFlags* flags;
  };
  /// Those of EngineDevice::CreateTransport.
  static absl::StatusOr<std::unique_ptr<EngineSharing>> Create(const Options& options, EngineDevice& device,
                                                               const engine::exec::EngineMemory& memory,
                                                               engine::rpc::BrokerClient& broker, const Clock& clock,
                                                               Metrics& metrics);
  ~EngineSharing() { Stop(); }

  engine::exec::SharingDependencies parts() {
    return {.transport = transport_.get(), .coordinator = coordinator_.get()};
  }
  engine::coordinator::Coordinator& coordinator() { return *coordinator_; }
  /// `push`: Coordinator::Start's.
  void Start(std::function<void(engine::coordinator::LoopMessage)> push);
  engine::rpc::SharingDescription Describe() const;
  /// Before a scrape; from any thread, one call at a time.
  void UpdateMetrics() {
    transport_metrics_->Update();
    account_metrics_.Set(coordinator_->Accounts());
  }
  /// The engine ends: asks back what is lent, so that borrowers can move its contents away until `deadline`.
  void AskBackAll(absl::Time deadline) { coordinator_->AskBackAll(deadline); }
  /// Gives back what is leased, and waits for what is lent: until `deadline`, and for revoke_deadline at least. REQUIRES:
  /// the engine serves no requests any more, and its loop is alive.
  void EndLeases(absl::Time deadline);
  void Stop();

 private:
  EngineSharing(const Options& options, const engine::exec::EngineMemory& memory, engine::rpc::BrokerClient& broker,
                const Clock& clock, Metrics& metrics);

  const Options options_;
  const engine::backend::KvMemory& kv_;
  const int64_t never_lent_blocks_;
  engine::rpc::BrokerClient& broker_;
  const Clock& clock_;
  engine::coordinator::AccountMetrics account_metrics_;
  std::unique_ptr<engine::coordinator::Coordinator> coordinator_;
  std::unique_ptr<engine::transport::Transport> transport_;
  std::unique_ptr<engine::transport::TransportMetrics> transport_metrics_;
  std::unique_ptr<engine::rpc::LeaseClient> leases_;
};

}  // namespace swiftcache::services
