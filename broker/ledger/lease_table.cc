// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/lease_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"

namespace swiftcache::broker::ledger {
namespace {

absl::Status CheckLease(const Lease& lease) {
  const auto broken = [&](const char* what) {
    return absl::InternalError(absl::StrCat("lease ", lease.id.value(), " (", StateName(lease.state), "): ", what));
  };
  if (HasEnded(lease.state)) return broken("has ended and is still in the table");
  if (lease.extent.first_block < 0 || lease.extent.num_blocks < 1) return broken("names no blocks");
  if (lease.donor.name == lease.borrower.name) return broken("donor and borrower are one");
  if (lease.state == LeaseState::kOffered && lease.epoch.has_value()) return broken("an offer has an epoch");
  const bool accepted = lease.state == LeaseState::kGranted || lease.state == LeaseState::kActive;
  if (accepted && !lease.epoch.has_value()) return broken("was accepted without an epoch");
  return absl::OkStatus();
}

}  // namespace

void LeaseTable::Insert(Record record) {
  const LeaseId id = record.lease.id;
  CHECK(records_.count(id) == 0) << "lease " << id << " twice";
  record.order = next_order_++;
  changes_.push_back({.lease = record.lease, .before = std::nullopt});
  records_.emplace(id, std::move(record));
}

absl::Status LeaseTable::Step(LeaseId id, LeaseState to) {
  const auto it = records_.find(id);
  CHECK(it != records_.end()) << "no lease " << id;
  Lease& lease = it->second.lease;
  const LeaseState before = lease.state;
  RETURN_IF_ERROR(CheckStep(id.value(), before, to));
  lease.state = to;
  changes_.push_back({.lease = lease, .before = before});
  if (HasEnded(to)) records_.erase(it);
  return absl::OkStatus();
}

void LeaseTable::MustStep(LeaseId id, LeaseState to) {
  const absl::Status status = Step(id, to);
  CHECK(status.ok()) << status;
}

Record* LeaseTable::Find(LeaseId id) {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}

void LeaseTable::Tell(const Lease& lease) { changes_.push_back({.lease = lease, .before = lease.state}); }

void LeaseTable::TellEnd(Lease claim) {
  claim.state = LeaseState::kReleased;
  changes_.push_back({.lease = std::move(claim), .before = std::nullopt});
}

std::vector<Extent> LeaseTable::ExtentsOf(const Party& donor) const {
  std::vector<Extent> extents;
  for (const auto& [id, record] : records_) {
    if (record.lease.donor == donor) extents.push_back(record.lease.extent);
  }
  return extents;
}

int64_t LeaseTable::LentBlocks(const Party& donor) const {
  int64_t blocks = 0;
  for (const Extent& extent : ExtentsOf(donor)) blocks += extent.num_blocks;
  return blocks;
}

std::vector<Change> LeaseTable::TakeChanges() { return std::exchange(changes_, {}); }

absl::Status LeaseTable::CheckInvariants() const {
  std::map<Party, std::vector<const Lease*>> by_donor;
  for (const auto& [id, record] : records_) {
    RETURN_IF_ERROR(CheckLease(record.lease));
    by_donor[record.lease.donor].push_back(&record.lease);
  }
  for (auto& [donor, leases] : by_donor) {
    std::sort(leases.begin(), leases.end(),
              [](const Lease* a, const Lease* b) { return a->extent.first_block < b->extent.first_block; });
    for (size_t i = 1; i < leases.size(); ++i) {
      if (!leases[i - 1]->extent.Overlaps(leases[i]->extent)) continue;
      return absl::InternalError(absl::StrCat("leases ", leases[i - 1]->id.value(), " and ", leases[i]->id.value(),
                                              " of donor ", donor.name, " share a block"));
    }
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::broker::ledger
