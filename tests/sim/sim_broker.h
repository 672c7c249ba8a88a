// SPDX-License-Identifier: Apache-2.0
// A broker process of the simulation: the real tables, fed as broker/loop feeds them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "broker/loop/tables.h"
#include "engine/lease/lease.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/plan.h"

namespace swiftcache::sim {

inline constexpr absl::Duration kHeartbeat = absl::Milliseconds(100);

/// As broker/rpc's and engine/rpc's translations of proto Lease, without the proto between them.
engine::lease::Lease ToEngineLease(const broker::ledger::Lease& lease);
broker::ledger::Lease ToBrokerLease(const engine::lease::Lease& lease);

/// What Watch sends to an engine: of its own leases all that live (a snapshot), or the one that changed; likewise limits.
struct WatchWord {
  std::string incarnation;
  bool snapshot = false;
  std::vector<engine::lease::Lease> leases;
  std::vector<broker::ledger::LeaseLimit> limits;
};

/// Thread-safety: none. Ownership: borrows all that it is given.
class SimBroker {
 public:
  static constexpr int kEndpoint = 0;
  using OnWord = std::function<void(const WatchWord&)>;

  SimBroker(Simulator& sim, Network& network, PlantedBug bug);

  void Start();
  void Die();
  void Stop() { process_.Stop(); }
  void Continue();
  Process& process() { return process_; }
  const std::string& incarnation() const { return incarnation_; }
  /// What its door calls.
  broker::loop::Tables& tables() { return *tables_; }
  absl::Time Now() const { return process_.LocalNow(); }
  void RevokeOne();

  /// A stream to an engine: a snapshot, then every change of its own leases and of limits, until it breaks or a newer one
  /// (of larger number) comes.
  void Watch(int endpoint, const std::string& instance, int64_t number, Process& to, OnWord on_word);
  /// The connection broke: what was not delivered is lost.
  void BreakStream(int endpoint) { streams_.erase(endpoint); }
  /// Why it has asked the lease's donor to revoke it; none: it has not.
  std::optional<broker::ledger::RevokeReason> WhyAskedFor(LeaseId id) const {
    const auto it = asked_for_.find(id);
    return it == asked_for_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  struct Stream {
    Pipe pipe;
    std::string instance;
    int64_t number = 0;
    Process* to = nullptr;
    int64_t life = 0;
    OnWord on_word;
  };

  void AfterEach();
  void Tell(int endpoint, WatchWord word);
  void Publish(const broker::loop::TableChange& change);
  void CheckToldLease(const engine::lease::Lease& lease);
  void PlanTick();

  Simulator& sim_;
  Network& network_;
  const PlantedBug bug_;
  Process process_;
  std::string incarnation_;
  std::optional<broker::loop::Tables> tables_;
  absl::Time last_awake_;
  std::map<int, Stream> streams_;
  std::map<LeaseId, engine::lease::Lease> told_;  // that live, as Watch told of them
  std::map<LeaseId, broker::ledger::RevokeReason> asked_for_;
  Micros planned_tick_ = 0;
  int64_t last_capability_ = 0;
};

}  // namespace swiftcache::sim
