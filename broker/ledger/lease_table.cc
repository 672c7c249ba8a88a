// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/lease_table.h"

#include <algorithm>
#include <iterator>
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
  places_[record.lease.donor].emplace(record.lease.extent.first_block, id);
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
  if (HasEnded(to)) Erase(it);
  return absl::OkStatus();
}

void LeaseTable::Erase(Map::iterator it) {
  const auto places = places_.find(it->second.lease.donor);
  places->second.erase(it->second.lease.extent.first_block);
  if (places->second.empty()) places_.erase(places);
  records_.erase(it);
}

void LeaseTable::MustStep(LeaseId id, LeaseState to) {
  const absl::Status status = Step(id, to);
  CHECK(status.ok()) << status;
}

Record* LeaseTable::Find(LeaseId id) {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}

void LeaseTable::Report(const Lease& lease) { changes_.push_back({.lease = lease, .before = lease.state}); }

void LeaseTable::ReportEnd(Lease claim, const Party& claimant) {
  if (records_.count(claim.id) > 0) return;
  if (claim.donor != claimant) claim.donor = {};
  if (claim.borrower != claimant) claim.borrower = {};
  claim.state = LeaseState::kReleased;
  changes_.push_back({.lease = std::move(claim), .before = std::nullopt});
}

std::vector<Extent> LeaseTable::ExtentsOf(const Party& donor) const {
  std::vector<Extent> extents;
  const auto places = places_.find(donor);
  if (places == places_.end()) return extents;
  for (const auto& [first_block, id] : places->second) extents.push_back(records_.at(id).lease.extent);
  return extents;
}

// Leases of one donor share no block: only the last one that begins before `extent` may reach into it.
std::vector<LeaseId> LeaseTable::Overlapping(const Party& donor, const Extent& extent) const {
  std::vector<LeaseId> ids;
  const auto places = places_.find(donor);
  if (places == places_.end()) return ids;
  auto at = places->second.lower_bound(extent.first_block);
  if (at != places->second.begin() && records_.at(std::prev(at)->second).lease.extent.Overlaps(extent)) --at;
  for (; at != places->second.end() && records_.at(at->second).lease.extent.Overlaps(extent); ++at) {
    ids.push_back(at->second);
  }
  return ids;
}

int64_t LeaseTable::LentBlocks(const Party& donor) const {
  int64_t blocks = 0;
  for (const Extent& extent : ExtentsOf(donor)) blocks += extent.num_blocks;
  return blocks;
}

std::vector<Change> LeaseTable::TakeChanges() { return std::exchange(changes_, {}); }

absl::Status LeaseTable::CheckInvariants() const {
  std::map<Party, std::vector<const Lease*>> by_donor;
  size_t places = 0;
  for (const auto& [donor, of_donor] : places_) places += of_donor.size();
  if (places != records_.size()) {
    return absl::InternalError(absl::StrCat(records_.size(), " leases lie in ", places, " places"));
  }
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
