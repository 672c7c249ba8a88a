// SPDX-License-Identifier: Apache-2.0
// The leases that have not ended: which extent of which arena is lent to which engine. Refuses illegal state changes
// and records every legal one (TakeChanges).
//
//   table.Insert({.lease = lease, .answer_by = now + absl::Seconds(3)});
//   table.Accept(id, epoch);
//   table.MustStep(id, LeaseState::kReleased);
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/parties.h"

namespace swiftcache::broker::ledger {

struct Record {
  Lease lease;
  PartyId donor, borrower;                        // the lease's
  int64_t order = 0;                              // counts up with entry into the table
  absl::Time entered;                             // when
  absl::Time answer_by = absl::InfiniteFuture();  // for the donor to accept or decline; ignored once it has accepted
};

/// Leases by place, those that lie furthest from the arena's end first: the order in which they are taken back, so that
/// what stays on lease is one run at the arena's end.
using Places = absl::btree_map<std::pair<int64_t, LeaseId>, const Record*>;

/// The leases that an engine gives, or that it takes, or that the engines of a model take, or those of one pair.
struct Holding {
  int64_t leases = 0, blocks = 0, bytes = 0;  // all; blocks of the donor
  int64_t offered_bytes = 0;                  // of these, those that the donor has not accepted
  int64_t revoking_bytes = 0;                 // and those being revoked
  Places stay;                                // offered or granted
  Places revoking;
  int64_t bytes_that_stay() const { return bytes - revoking_bytes; }
};

/// What one donor lends to one borrower.
struct Pair {
  PartyId borrower;
  Holding holding;
};

/// What is asked of it costs the logarithm of its size, except where lists are returned. Thread-safety: none; one loop
/// owns it. Ownership: borrows `parties`, where it holds those of its leases. Errors: as named.
class LeaseTable {
 public:
  using Map = absl::btree_map<LeaseId, std::unique_ptr<Record>>;  // what points to a record stays valid

  explicit LeaseTable(Parties& parties) : parties_(parties) {}

  /// Fills `donor` and `borrower` of the record itself. REQUIRES: no lease of that id, and no other of the donor that
  /// overlaps the extent.
  void Insert(Record record);
  /// The donor has accepted an offer: it becomes granted, unless the broker has asked to revoke it meanwhile. REQUIRES:
  /// the lease is there, without an epoch.
  void Accept(LeaseId id, Epoch epoch);
  /// FAILED_PRECONDITION names both states. A lease that has ended is gone. REQUIRES: the lease is there.
  absl::Status Step(LeaseId id, LeaseState to);
  /// As Step, for steps that the caller knows to be legal.
  void MustStep(LeaseId id, LeaseState to);
  /// Asks the donor to revoke, who learns of it from its Watch; does nothing where that was asked before.
  void AskToRevoke(LeaseId id, RevokeReason reason);
  /// Ends an offer. Its extent counts as taken until then.
  void Decline(LeaseId id, absl::Time until);

  /// Null: there is none, or it has ended.
  const Record* Find(LeaseId id) const;
  const Map& all() const { return records_; }
  /// That the party gives, and takes. Valid until the table changes.
  const Holding& LentBy(PartyId donor) const { return SideOf(donor).lent; }
  const Holding& BorrowedBy(PartyId borrower) const { return SideOf(borrower).borrowed; }
  /// That the engines of a model take. Valid until the table changes.
  const Holding& BorrowedByModel(const std::string& model_name) const;
  /// What the donor lends, by borrower; of one borrower. Valid until the table changes.
  const std::vector<Pair>& PairsOf(PartyId donor) const { return SideOf(donor).pairs; }
  const Holding& PairOf(PartyId donor, PartyId borrower) const;
  /// The parts of the donor's arena that are on lease or were declined a moment ago. Neighbours are one.
  std::vector<Extent> TakenOf(PartyId donor) const;
  /// The donor's leases that share a block with `extent`. REQUIRES: extent.num_blocks > 0.
  std::vector<LeaseId> Overlapping(PartyId donor, const Extent& extent) const;

  /// Offers that should have been answered by `now`.
  std::vector<LeaseId> Unanswered(absl::Time now) const;
  absl::Time NextAnswer() const { return answers_.empty() ? absl::InfiniteFuture() : answers_.begin()->first; }
  void Postpone(absl::Duration lateness);
  /// Of one offer. REQUIRES: the donor has not accepted it.
  void SetAnswerBy(LeaseId id, absl::Time answer_by);
  /// Declined extents may be offered again.
  void ForgetDeclined(absl::Time now);

  std::vector<Change> TakeChanges() { return std::exchange(changes_, {}); }

  /// INTERNAL: two leases of one donor overlap, an epoch is missing or early, a sum or index is wrong; says which.
  absl::Status CheckInvariants() const;

 private:
  // What a party gives and takes.
  struct Side {
    Holding lent, borrowed;
    std::vector<Pair> pairs;                 // of `lent`, by borrower; none is empty
    absl::btree_map<int64_t, int64_t> runs;  // of adjacent leases in `lent`: first block and end
  };
  struct Declined {
    PartyId donor;
    Extent extent;
    absl::Time until;
  };
  const Side& SideOf(PartyId party) const;
  std::array<Holding*, 4> HoldingsOf(const Record& record);
  void Set(Record& record, LeaseState state, std::optional<Epoch> epoch);
  void Index(const Record& record);
  void Remove(const Record& record);
  absl::Status CheckSums() const;

  Parties& parties_;
  Map records_;
  std::vector<Side> sides_;                           // by party
  absl::flat_hash_map<std::string, Holding> models_;  // by the borrower's; none is empty
  std::set<std::pair<absl::Time, LeaseId>> answers_;  // of offers
  std::deque<Declined> declined_;                     // in the order of `until`
  std::vector<Change> changes_;
  int64_t next_order_ = 1;
};

}  // namespace swiftcache::broker::ledger
