// SPDX-License-Identifier: Apache-2.0
// All that a broker knows, as a pure value: engines, leases, one incarnation, one sequence of versions. The loop gives
// it a thread and a clock; the simulator gives it others.
//
//   Tables tables({.incarnation = "7f3a", .new_capability = random});
//   absl::Status status = tables.Heartbeat(caller, load, now);
//   for (const News& news : tables.TakeNews()) Tell(news.event);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/ledger/ledger.h"
#include "broker/loop/watcher.h"
#include "broker/membership/membership.h"

namespace swiftcache::broker::loop {

/// Who speaks, and to which incarnation of the broker.
struct Caller {
  std::string name, instance_id, incarnation;
};

/// One change: what watchers are told, and what changed.
struct News {
  WatchEvent event;
  std::variant<membership::Change, ledger::Change, ledger::LeaseLimit> change;
};

/// Keeps engines and leases in step: whoever registers enters both, whoever dies leaves both. Thread-safety: none.
/// Ownership: a value. Errors: those of Membership and Ledger, and UNAVAILABLE for another incarnation. REQUIRES of all
/// `now`: it does not go back.
class Tables {
 public:
  struct Options {
    membership::Options membership = {};
    ledger::Options ledger = {};
    std::string incarnation = {};
    ledger::Ledger::NewCapability new_capability = {};
  };
  explicit Tables(const Options& options);

  /// `held`: the leases that the engine holds, as donor or borrower.
  absl::Status Register(const membership::EngineInfo& info, const std::vector<ledger::Lease>& held, absl::Time now);
  absl::Status Heartbeat(const Caller& caller, const membership::EngineLoad& load, absl::Time now);
  void Deregister(const std::string& name, const std::string& instance_id, absl::Time now);

  absl::StatusOr<int64_t> ReportWindow(const Caller& caller, const elastic::Demand& demand, absl::Time now);
  absl::StatusOr<ledger::Answer> RequestLease(const Caller& caller, const ledger::LeaseRequest& request,
                                              absl::Time now);
  absl::StatusOr<std::vector<ledger::LeaseId>> ScaleUp(const Caller& caller, int64_t need_blocks, absl::Time now);
  absl::Status ReportLease(const Caller& caller, const ledger::LeaseReport& report, absl::Time now);
  absl::Status LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes, absl::Time now);
  absl::Status RevokeLease(ledger::LeaseId lease, absl::Time now);

  /// Ends what is past its deadline: engines, offers, claims.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest; infinite future: never.
  absl::Time NextDeadline() const;
  /// Puts every deadline off: for a broker that itself slept and could not hear.
  void Forgive(absl::Duration lateness);

  /// What a watcher gets first; TakeNews continues it where no news is left to take.
  WatchEvent Snapshot() const;
  /// What changed since the last call, in order; versions count up by one.
  std::vector<News> TakeNews();

  const membership::Membership& engines() const { return engines_; }
  const ledger::Ledger& leases() const { return leases_; }

 private:
  absl::Status CheckIncarnation(const Caller& caller) const;
  void Enter(const membership::EngineInfo& info, const std::vector<ledger::Lease>& held, absl::Time now);
  void Settle(absl::Time now);
  void Add(decltype(WatchEvent::what) what, decltype(News::change) change);

  const std::string incarnation_;
  membership::Membership engines_;
  ledger::Ledger leases_;
  std::vector<News> news_;
  int64_t version_ = 0;
};

}  // namespace swiftcache::broker::loop
