// SPDX-License-Identifier: Apache-2.0
// All that a broker knows, as a pure value: engines, leases, its incarnation.
// BrokerLoop runs it on a thread with a real clock, the simulator with a simulated one.
//
//   Tables tables({.incarnation = "7f3a", .new_capability = random});
//   absl::Status status = tables.Heartbeat(caller, load, now);
//   for (const TableChange& change : tables.TakeChanges()) Publish(change.event);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/ledger/ledger.h"
#include "broker/loop/watcher.h"
#include "broker/membership/membership.h"

namespace swiftcache::broker::loop {

/// The engine that calls, and the incarnation of the broker that it registered at.
struct Caller {
  std::string name, instance_id, incarnation;
};

struct TableChange {
  WatchEvent event;
  std::optional<ledger::LeaseState> before = {};  // of a lease that the table had
};

/// Keeps engines and leases in step: an engine that registers enters both, one that dies leaves both. Thread-safety:
/// none.
/// Ownership: a value. Errors: those of Membership and Ledger, and UNAVAILABLE for another incarnation. REQUIRES of all
/// `now`: it does not go back.
class Tables {
 public:
  struct Registration {
    membership::EngineInfo info;
    std::vector<ledger::Lease> given;        // the leases that the engine gives
    std::vector<ledger::LeaseLimit> limits;  // that it has heard of
  };
  struct Options {
    membership::Options membership = {};
    ledger::Options ledger = {};
    std::string incarnation = {};
    ledger::Ledger::NewCapability new_capability = {};
  };
  explicit Tables(const Options& options);

  absl::Status Register(const Registration& registration, absl::Time now);
  absl::Status Heartbeat(const Caller& caller, const membership::LoadReport& load, absl::Time now);
  /// Goes back with a heartbeat: Ledger::WeightsFor.
  std::vector<ledger::BorrowerWeight> WeightsFor(const Caller& donor, absl::Time now) const;
  void Deregister(const std::string& name, const std::string& instance_id, absl::Time now);

  absl::Status ReportWindow(const Caller& caller, const elastic::Demand& demand, absl::Time now);
  absl::StatusOr<ledger::LeaseResponse> RequestLease(const Caller& caller, const ledger::LeaseRequest& request,
                                                     absl::Time now);
  absl::StatusOr<std::vector<ledger::LeaseId>> ScaleUp(const Caller& caller, int64_t need_blocks, absl::Time now);
  absl::Status ReportLease(const Caller& caller, const ledger::Lease& lease, absl::Time now);
  absl::Status LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes, absl::Time now);
  absl::Status RevokeLease(ledger::LeaseId lease, absl::Time now);

  /// Ends engines and offers that are past their deadlines.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest; infinite future: never.
  absl::Time NextDeadline() const;
  /// Moves every deadline back by `lateness`: for a broker that was itself suspended and could receive nothing.
  void PostponeDeadlines(absl::Duration lateness);

  /// What a watcher gets first, as Watcher::instance_id says. Later changes follow from TakeChanges. REQUIRES: all
  /// changes so far were taken.
  WatchEvent Snapshot(const std::string& instance_id = "") const;
  /// What changed since the last call, in order.
  std::vector<TableChange> TakeChanges();

  const membership::Membership& engines() const { return engines_; }
  const ledger::Ledger& leases() const { return leases_; }

 private:
  absl::Status CheckIncarnation(const Caller& caller) const;
  void AddToLedger(const Registration& registration, absl::Time now);
  void CollectChanges(absl::Time now);
  void AddChange(decltype(WatchEvent::what) what, std::optional<ledger::LeaseState> before = std::nullopt);

  const std::string incarnation_;
  membership::Membership engines_;
  ledger::Ledger leases_;
  std::vector<TableChange> changes_;
  int64_t last_change_ = 0;  // its number
};

}  // namespace swiftcache::broker::loop
