// SPDX-License-Identifier: Apache-2.0
// The leases that have not ended: which extent of which arena is lent to which engine. Refuses illegal state changes
// and records every legal one (TakeChanges).
//
//   table.Insert({.lease = lease, .answer_by = now + absl::Seconds(3)});
//   table.Accept(id, epoch);
//   table.MustStep(id, LeaseState::kReleased);
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

struct Record {
  Lease lease;
  int64_t order = 0;                              // counts up with entry into the table
  absl::Time entered;                             // when
  absl::Time answer_by = absl::InfiniteFuture();  // for the donor to accept or decline; ignored once it has accepted
};

/// Leases by place, those that lie furthest from the arena's end first: the order in which they are taken back, so that
/// what stays on lease is one run at the arena's end.
using Places = std::map<std::pair<int64_t, LeaseId>, const Record*>;

/// The leases that an engine gives, or that it takes, or the leases of one pair of engines.
struct Holding {
  int64_t leases = 0, blocks = 0, bytes = 0;  // all; blocks of the donor
  int64_t offered_blocks = 0;                 // of these, those that the donor has not accepted
  int64_t revoking_bytes = 0;                 // and those being revoked
  Places stay;                                // offered or granted
  Places revoking;
  int64_t bytes_that_stay() const { return bytes - revoking_bytes; }
};

/// What is asked of it costs the logarithm of its size, except where lists are returned. Thread-safety: none; one loop
/// owns it. Ownership: a value. Errors: as named.
class LeaseTable {
 public:
  using Map = std::map<LeaseId, Record>;

  /// REQUIRES: no lease of that id, and no other of the donor that overlaps the extent.
  void Insert(Record record);
  /// The donor has accepted an offer: it becomes granted, unless the broker has asked to revoke it meanwhile. REQUIRES:
  /// the lease is there, without an epoch.
  void Accept(LeaseId id, Epoch epoch);
  /// FAILED_PRECONDITION names both states. A lease that has ended is gone. REQUIRES: the lease is there.
  absl::Status Step(LeaseId id, LeaseState to);
  /// As Step, for steps that the caller knows to be legal.
  void MustStep(LeaseId id, LeaseState to);
  /// Asks the donor to revoke, who learns of it from its Watch; does nothing where that was asked before.
  void AskToRevoke(LeaseId id);
  /// Ends an offer. Its extent counts as taken until then.
  void Decline(LeaseId id, absl::Time until);

  /// Null: there is none, or it has ended.
  const Record* Find(LeaseId id) const;
  const Map& all() const { return records_; }
  /// That the party gives, and takes. Valid until the table changes.
  const Holding& LentBy(const Party& donor) const;
  const Holding& BorrowedBy(const Party& borrower) const;
  /// What the donor lends, by borrower.
  const std::map<Party, Holding>& PairsOf(const Party& donor) const;
  /// The parts of the donor's arena that are on lease or were declined a moment ago. Neighbours are one.
  std::vector<Extent> TakenOf(const Party& donor) const;
  /// The donor's leases that share a block with `extent`, by place. REQUIRES: extent.num_blocks > 0.
  std::vector<LeaseId> Overlapping(const Party& donor, const Extent& extent) const;

  /// Offers that should have been answered by `now`.
  std::vector<LeaseId> Unanswered(absl::Time now) const;
  absl::Time NextAnswer() const { return answers_.empty() ? absl::InfiniteFuture() : answers_.begin()->first; }
  void Postpone(absl::Duration lateness);
  /// Declined extents may be offered again.
  void ForgetDeclined(absl::Time now);

  std::vector<Change> TakeChanges() { return std::exchange(changes_, {}); }

  /// INTERNAL: two leases of one donor overlap, an epoch is missing or early, a sum or index is wrong; says which.
  absl::Status CheckInvariants() const;

 private:
  struct Lender {
    Holding all;
    std::map<Party, Holding> pairs;
    std::map<int64_t, LeaseId> by_block;
    std::map<int64_t, int64_t> runs;  // of adjacent leases: first block and end
  };
  struct Declined {
    Party donor;
    Extent extent;
    absl::Time until;
  };
  void Index(const Record& record);
  void Unindex(const Record& record);
  static void AddRun(Lender& lender, const Extent& extent);
  static void RemoveRun(Lender& lender, const Extent& extent);
  absl::Status CheckSums() const;

  Map records_;
  std::map<Party, Lender> lenders_;
  std::map<Party, Holding> borrowers_;
  std::set<std::pair<absl::Time, LeaseId>> answers_;  // of offers
  std::deque<Declined> declined_;                     // in the order of `until`
  std::vector<Change> changes_;
  int64_t next_order_ = 1;
};

}  // namespace swiftcache::broker::ledger
