// SPDX-License-Identifier: Apache-2.0
// The leases that have not ended: which extent of which arena is lent to which engine. Refuses illegal state changes
// and records every legal one (TakeChanges).
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

/// A lease, and the answers about it that the broker waits for.
struct Record {
  Lease lease;
  int64_t order = 0;                               // counts up with entry into the table
  absl::Time entered;                              // when
  absl::Time answer_by = absl::InfiniteFuture();   // for the donor to accept or decline; ignored once it has accepted
  absl::Time confirm_by = absl::InfiniteFuture();  // for the borrower to claim a lease that only its donor has claimed
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
  /// Records a change of a lease whose state stays the same.
  void Report(const Lease& lease);
  /// Records that the lease which `claimant` claims has ended (RELEASED). A claim proves nothing about other engines:
  /// the change names no other party, and nothing is recorded if the table has a live lease of that id.
  void ReportEnd(Lease claim, const Party& claimant);

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
