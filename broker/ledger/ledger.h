// SPDX-License-Identifier: Apache-2.0
// The broker's record of leases: which engine may borrow which memory of which other engine. A pure value: time and
// random bytes are handed in.
//
//   Ledger ledger({.id_prefix = random31}, [&] { return SixteenRandomBytes(); });
//   ledger.AddEngine(engine, leases_it_gives, now);
//   ASSIGN_OR_RETURN(LeaseResponse answer, ledger.RequestLease(chat, {.key = "r1", .want_bytes = 64 << 20}, now));
//   for (const Change& change : ledger.TakeChanges()) Publish(change);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/elastic/policy.h"
#include "broker/ledger/allocation.h"
#include "broker/ledger/claims.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"
#include "broker/ledger/limits.h"
#include "broker/ledger/members.h"
#include "broker/ledger/options.h"
#include "broker/ledger/parties.h"
#include "broker/ledger/taking_back.h"

namespace swiftcache::broker::ledger {

/// Every block has one user at any time: its owner, or the borrower of the one lease that covers it. The donor alone
/// says what becomes of a lease (claims.h); its silence about an offer is a no. The broker only asks: by an offer, and by
/// REVOKING. It forgets the leases of a donor that is gone, and learns them again when the donor comes back; whether a
/// borrower is there does not matter to a lease. This is the face of four: Allocation (who gets what), Claims, TakingBack
/// (whose leases a donor in need takes back) and Limits.
///
/// Thread-safety: none; one loop owns it. Ownership: a value. Errors: as named; UNAVAILABLE everywhere for an engine
/// instance that was not added ("register again"). REQUIRES of all `now`: it does not go back.
class Ledger {
 public:
  using NewCapability = ledger::NewCapability;
  Ledger(const Options& options, NewCapability new_capability);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Engines.
  /// Adds an engine, or replaces what is known of it, with all leases that it gives: as Claims::HearAll. Idempotent.
  /// REQUIRES: num_blocks * block_bytes is at most membership::kMaxArenaBytes, as Validate checks.
  void AddEngine(const Engine& engine, const std::vector<Lease>& given, absl::Time now);
  /// The engine is dead, gone, or cannot reach the broker: leases from it are forgotten (RELEASED); offers to it are
  /// revoked, and where it left in order, what was granted to it, which it gave back or never saw.
  void RemoveEngine(const std::string& name, absl::Time now, bool in_order = false);
  /// Whether new offers may go to it.
  void SetReady(const std::string& name, bool ready);

  // Calls of engines.
  /// INVALID_ARGUMENT: negative numbers.
  absl::Status ReportWindow(const Party& who, const elastic::Demand& demand, absl::Time now);
  /// INVALID_ARGUMENT: want_bytes < 1, negative numbers, no key or one above 128 bytes.
  absl::StatusOr<LeaseResponse> RequestLease(const Party& who, const LeaseRequest& request, absl::Time now);
  /// From whom the donor should take need_blocks, and how much, told as leases of theirs: first those that are being
  /// revoked already, then the innermost lease of the borrower with the most bytes per weight, and so on.
  /// INVALID_ARGUMENT: need_blocks < 1. Changes no lease.
  absl::StatusOr<std::vector<LeaseId>> ScaleUp(const Party& who, int64_t need_blocks, absl::Time now);
  /// What ScaleUp goes by, for a donor that hears of that too late. Empty: it has no choice, or is no engine here.
  std::vector<BorrowerWeight> WeightsFor(const Party& donor, absl::Time now) const;
  /// The donor's word: `lease` is GRANTED, RELEASED or FENCED now. INVALID_ARGUMENT: another state, or no lease that it
  /// could give. FAILED_PRECONDITION: it shares blocks with another lease of the donor, or was granted at another epoch.
  /// PERMISSION_DENIED: not the donor's lease.
  absl::Status ReportLease(const Party& who, const Lease& lease, absl::Time now);

  // Calls of operators.
  /// None: no limit. Errors: Limits::Set's.
  absl::StatusOr<LeaseLimit> LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                        absl::Time now);
  /// A limit that an engine knows from another broker. False: it is no news.
  bool LearnLimit(const LeaseLimit& limit) { return limits_.Learn(limit); }
  /// NOT_FOUND: no such lease.
  absl::Status RevokeLease(LeaseId id, absl::Time now);

  // Time.
  /// Ends offers that were not answered.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest; infinite future: never.
  absl::Time NextDeadline() const { return table_.NextAnswer(); }
  /// Moves every deadline back by `lateness`: for a broker that was itself suspended and could receive nothing.
  void PostponeDeadlines(absl::Duration lateness) { table_.Postpone(lateness); }

  /// The leases that have not ended, by id.
  std::vector<Lease> Snapshot() const;
  /// Those that the instance gives or takes, whether it is here or not, and by whatever name.
  std::vector<Lease> LeasesOf(const std::string& instance_id) const;
  /// By model name, with those that were lifted.
  std::vector<LeaseLimit> limits() const { return limits_.all(); }
  /// What changed since the last call, in order. Changes of limits are not among them.
  std::vector<Change> TakeChanges() { return table_.TakeChanges(); }
  /// On lease to the engines of a model, those being revoked included.
  int64_t BorrowedBytes(const std::string& model_name) const { return limits_.BorrowedBytes(model_name); }
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  Member& Replace(const Engine& engine, absl::Time now);
  void ForgetLeasesOf(PartyId donor);
  std::vector<const Record*> RecordsOf(PartyId party) const;
  absl::Status CheckAgainstMembers(const Lease& lease) const;

  const Options options_;
  Parties parties_;
  LeaseTable table_;
  Members members_;
  Limits limits_;
  Claims claims_;
  Allocation allocation_;
  TakingBack taking_back_;
};

}  // namespace swiftcache::broker::ledger
