// SPDX-License-Identifier: Apache-2.0
// The leases that have not ended: which extent of whose arena is whose. Only legal steps, and every one is told.
//
//   table.Insert({.lease = lease, .answer_by = now + absl::Seconds(3)});
//   RETURN_IF_ERROR(table.Step(id, LeaseState::kGranted));
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

/// A lease and what the broker waits for.
struct Record {
  Lease lease;
  int64_t order = 0;                               // counts up with entry into the table
  absl::Time entered;                              // when
  absl::Time answer_by = absl::InfiniteFuture();   // the donor: accept or decline. Meant while there is no epoch
  absl::Time confirm_by = absl::InfiniteFuture();  // the borrower: claim what only the donor has claimed
};

/// Thread-safety: none; one loop owns it. Ownership: a value. Errors: as named.
class LeaseTable {
 public:
  using Map = std::map<LeaseId, Record>;

  /// REQUIRES: no lease of that id, and no other of the donor that overlaps the extent.
  void Insert(Record record);
  /// FAILED_PRECONDITION names both states. A lease that has ended is gone. REQUIRES: the lease is there.
  absl::Status Step(LeaseId id, LeaseState to);
  /// As Step, for steps that the caller knows to be legal.
  void MustStep(LeaseId id, LeaseState to);
  /// Null: there is none, or it has ended.
  Record* Find(LeaseId id);
  const Map& all() const { return records_; }
  /// Tells of a lease in the table whose state has not changed.
  void Tell(const Lease& lease);
  /// Tells `claimant` that the lease which it claims has ended (RELEASED). A claim proves nothing about others: what is
  /// told names no other party, and where the table has a lease of that id, which lives, nothing is told.
  void TellEnd(Lease claim, const Party& claimant);

  /// Ids of the leases for which `keep(record)` is true; by id.
  template <typename Keep>
  std::vector<LeaseId> Where(const Keep& keep) const {
    std::vector<LeaseId> ids;
    for (const auto& [id, record] : records_) {
      if (keep(record)) ids.push_back(id);
    }
    return ids;
  }
  std::vector<Extent> ExtentsOf(const Party& donor) const;
  /// The donor's leases that share a block with `extent`, by place. REQUIRES: extent.num_blocks > 0.
  std::vector<LeaseId> Overlapping(const Party& donor, const Extent& extent) const;
  int64_t LentBlocks(const Party& donor) const;

  std::vector<Change> TakeChanges();

  /// INTERNAL: two leases of one donor overlap, an epoch is missing or early, or the like; says which.
  absl::Status CheckInvariants() const;

 private:
  void Erase(Map::iterator it);

  Map records_;
  std::map<Party, std::map<int64_t, LeaseId>> places_;  // of the same: by donor, by first block
  std::vector<Change> changes_;
  int64_t next_order_ = 1;
};

}  // namespace swiftcache::broker::ledger
