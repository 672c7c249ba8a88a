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
  if (lease.state == LeaseState::kGranted && !lease.epoch.has_value()) return broken("was accepted without an epoch");
  return absl::OkStatus();
}

const Holding& Nothing() {
  static const Holding nothing;
  return nothing;
}

// `times`: 1, or -1 to take it out again.
void Count(Holding& holding, const Lease& lease, int64_t times) {
  holding.leases += times;
  holding.blocks += times * lease.extent.num_blocks;
  holding.bytes += times * lease.num_bytes;
  if (!lease.epoch.has_value()) holding.offered_blocks += times * lease.extent.num_blocks;
  if (lease.state == LeaseState::kRevoking) holding.revoking_bytes += times * lease.num_bytes;
}

Places& PlacesOf(Holding& holding, const Lease& lease) {
  return lease.state == LeaseState::kRevoking ? holding.revoking : holding.stay;
}

void Add(Holding& holding, const Record& record) {
  const Lease& lease = record.lease;
  Count(holding, lease, 1);
  PlacesOf(holding, lease)[{lease.extent.first_block, lease.id}] = &record;
}

void Subtract(Holding& holding, const Record& record) {
  const Lease& lease = record.lease;
  Count(holding, lease, -1);
  PlacesOf(holding, lease).erase({lease.extent.first_block, lease.id});
}

bool SameSums(const Holding& a, const Holding& b) {
  return a.leases == b.leases && a.blocks == b.blocks && a.bytes == b.bytes && a.offered_blocks == b.offered_blocks &&
         a.revoking_bytes == b.revoking_bytes && a.stay == b.stay && a.revoking == b.revoking;
}

}  // namespace

void LeaseTable::Insert(Record record) {
  const LeaseId id = record.lease.id;
  CHECK(records_.count(id) == 0) << "lease " << id << " twice";
  record.order = next_order_++;
  changes_.push_back({.lease = record.lease, .before = std::nullopt});
  const Record& entered = records_.emplace(id, std::move(record)).first->second;
  Index(entered);
  AddRun(lenders_[entered.lease.donor], entered.lease.extent);
  if (!entered.lease.epoch.has_value()) answers_.emplace(entered.answer_by, id);
}

void LeaseTable::Accept(LeaseId id, Epoch epoch) {
  Record& record = records_.at(id);
  CHECK(!record.lease.epoch.has_value()) << "lease " << id << " was accepted before";
  answers_.erase({record.answer_by, id});
  Unindex(record);
  record.lease.epoch = epoch;
  Index(record);
  if (record.lease.state == LeaseState::kOffered) return MustStep(id, LeaseState::kGranted);
  changes_.push_back({.lease = record.lease, .before = record.lease.state});
}

absl::Status LeaseTable::Step(LeaseId id, LeaseState to) {
  const auto it = records_.find(id);
  CHECK(it != records_.end()) << "no lease " << id;
  Record& record = it->second;
  const LeaseState before = record.lease.state;
  RETURN_IF_ERROR(CheckStep(id.value(), before, to));
  Unindex(record);
  record.lease.state = to;
  changes_.push_back({.lease = record.lease, .before = before});
  if (!HasEnded(to)) {
    Index(record);
    return absl::OkStatus();
  }
  const auto lender = lenders_.find(record.lease.donor);
  RemoveRun(lender->second, record.lease.extent);
  if (lender->second.all.leases == 0) lenders_.erase(lender);
  answers_.erase({record.answer_by, id});
  records_.erase(it);
  return absl::OkStatus();
}

void LeaseTable::MustStep(LeaseId id, LeaseState to) {
  const absl::Status status = Step(id, to);
  CHECK(status.ok()) << status;
}

void LeaseTable::AskToRevoke(LeaseId id) {
  if (records_.at(id).lease.state != LeaseState::kRevoking) MustStep(id, LeaseState::kRevoking);
}

void LeaseTable::Decline(LeaseId id, absl::Time until) {
  const Lease& lease = records_.at(id).lease;
  declined_.push_back({.donor = lease.donor, .extent = lease.extent, .until = until});
  MustStep(id, LeaseState::kReleased);
}

const Record* LeaseTable::Find(LeaseId id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}

const Holding& LeaseTable::LentBy(const Party& donor) const {
  const auto it = lenders_.find(donor);
  return it == lenders_.end() ? Nothing() : it->second.all;
}

const Holding& LeaseTable::BorrowedBy(const Party& borrower) const {
  const auto it = borrowers_.find(borrower);
  return it == borrowers_.end() ? Nothing() : it->second;
}

const std::map<Party, Holding>& LeaseTable::PairsOf(const Party& donor) const {
  static const std::map<Party, Holding> none;
  const auto it = lenders_.find(donor);
  return it == lenders_.end() ? none : it->second.pairs;
}

std::vector<Extent> LeaseTable::TakenOf(const Party& donor) const {
  std::vector<Extent> taken;
  if (const auto it = lenders_.find(donor); it != lenders_.end()) {
    for (const auto& [first, end] : it->second.runs) taken.push_back({.first_block = first, .num_blocks = end - first});
  }
  for (const Declined& declined : declined_) {
    if (declined.donor == donor) taken.push_back(declined.extent);
  }
  return taken;
}

// Leases of one donor share no block: only the last one that begins before `extent` may reach into it.
std::vector<LeaseId> LeaseTable::Overlapping(const Party& donor, const Extent& extent) const {
  std::vector<LeaseId> ids;
  const auto lender = lenders_.find(donor);
  if (lender == lenders_.end()) return ids;
  const std::map<int64_t, LeaseId>& by_block = lender->second.by_block;
  auto at = by_block.lower_bound(extent.first_block);
  if (at != by_block.begin() && records_.at(std::prev(at)->second).lease.extent.Overlaps(extent)) --at;
  for (; at != by_block.end() && records_.at(at->second).lease.extent.Overlaps(extent); ++at) {
    ids.push_back(at->second);
  }
  return ids;
}

std::vector<LeaseId> LeaseTable::Unanswered(absl::Time now) const {
  std::vector<LeaseId> ids;
  for (auto it = answers_.begin(); it != answers_.end() && it->first <= now; ++it) ids.push_back(it->second);
  return ids;
}

void LeaseTable::Postpone(absl::Duration lateness) {
  for (const auto& [when, id] : std::exchange(answers_, {})) {
    records_.at(id).answer_by += lateness;
    answers_.emplace(when + lateness, id);
  }
}

void LeaseTable::ForgetDeclined(absl::Time now) {
  while (!declined_.empty() && declined_.front().until <= now) declined_.pop_front();
}

void LeaseTable::Index(const Record& record) {
  const Lease& lease = record.lease;
  Lender& lender = lenders_[lease.donor];
  Add(lender.all, record);
  Add(lender.pairs[lease.borrower], record);
  Add(borrowers_[lease.borrower], record);
  lender.by_block[lease.extent.first_block] = lease.id;
}

void LeaseTable::Unindex(const Record& record) {
  const Lease& lease = record.lease;
  Lender& lender = lenders_.at(lease.donor);
  const auto pair = lender.pairs.find(lease.borrower);
  const auto borrower = borrowers_.find(lease.borrower);
  Subtract(lender.all, record);
  Subtract(pair->second, record);
  Subtract(borrower->second, record);
  if (pair->second.leases == 0) lender.pairs.erase(pair);
  if (borrower->second.leases == 0) borrowers_.erase(borrower);
  lender.by_block.erase(lease.extent.first_block);
}

void LeaseTable::AddRun(Lender& lender, const Extent& extent) {
  int64_t first = extent.first_block, end = extent.end();
  const auto after = lender.runs.lower_bound(first);
  if (after != lender.runs.begin() && std::prev(after)->second == first) first = std::prev(after)->first;
  if (after != lender.runs.end() && after->first == end) {
    end = after->second;
    lender.runs.erase(after);
  }
  lender.runs[first] = end;
}

void LeaseTable::RemoveRun(Lender& lender, const Extent& extent) {
  const auto run = std::prev(lender.runs.upper_bound(extent.first_block));
  const auto [first, end] = *run;
  lender.runs.erase(run);
  if (first < extent.first_block) lender.runs[first] = extent.first_block;
  if (extent.end() < end) lender.runs[extent.end()] = end;
}

absl::Status LeaseTable::CheckInvariants() const {
  for (const auto& [id, record] : records_) RETURN_IF_ERROR(CheckLease(record.lease));
  for (const auto& [donor, lender] : lenders_) {
    const Lease* before = nullptr;
    for (const auto& [first_block, id] : lender.by_block) {
      const Lease& lease = records_.at(id).lease;
      if (before != nullptr && before->extent.Overlaps(lease.extent)) {
        return absl::InternalError(absl::StrCat("leases ", before->id.value(), " and ", lease.id.value(), " of donor ",
                                                donor.name, " share a block"));
      }
      before = &lease;
    }
  }
  return CheckSums();
}

// The indexes against those of a table that is made anew from the leases.
absl::Status LeaseTable::CheckSums() const {
  LeaseTable fresh;
  for (const auto& [id, record] : records_) {
    fresh.Index(record);
    AddRun(fresh.lenders_[record.lease.donor], record.lease.extent);
    if (!record.lease.epoch.has_value()) fresh.answers_.emplace(record.answer_by, id);
  }
  if (fresh.answers_ != answers_) return absl::InternalError("the deadlines of offers are not those of the leases");
  const auto same_holdings = [](const std::map<Party, Holding>& a, const std::map<Party, Holding>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.first == y.first && SameSums(x.second, y.second); });
  };
  if (!same_holdings(fresh.borrowers_, borrowers_)) return absl::InternalError("what borrowers hold does not add up");
  const auto same_lender = [&](const auto& x, const auto& y) {
    const Lender &a = x.second, &b = y.second;
    return x.first == y.first && SameSums(a.all, b.all) && same_holdings(a.pairs, b.pairs) &&
           a.by_block == b.by_block && a.runs == b.runs;
  };
  if (std::equal(fresh.lenders_.begin(), fresh.lenders_.end(), lenders_.begin(), lenders_.end(), same_lender)) {
    return absl::OkStatus();
  }
  return absl::InternalError("what donors lend does not add up");
}

}  // namespace swiftcache::broker::ledger
