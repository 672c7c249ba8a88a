// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/lease_table.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
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

// `times`: 1, or -1 to take it out again.
void Count(Holding& holding, const Lease& lease, int64_t times) {
  holding.leases += times;
  holding.blocks += times * lease.extent.num_blocks;
  holding.bytes += times * lease.num_bytes;
  if (!lease.epoch.has_value()) holding.offered_bytes += times * lease.num_bytes;
  if (lease.state == LeaseState::kRevoking) holding.revoking_bytes += times * lease.num_bytes;
}

Places& PlacesOf(Holding& holding, LeaseState state) {
  return state == LeaseState::kRevoking ? holding.revoking : holding.stay;
}

std::pair<int64_t, LeaseId> PlaceOf(const Lease& lease) { return {lease.extent.first_block, lease.id}; }

// Where the borrower's is, or would be.
template <typename Pairs>
auto FindPair(Pairs& pairs, PartyId borrower) {
  return std::lower_bound(pairs.begin(), pairs.end(), borrower,
                          [](const Pair& pair, PartyId party) { return pair.borrower < party; });
}

using Runs = absl::btree_map<int64_t, int64_t>;

void AddRun(Runs& runs, const Extent& extent) {
  int64_t first = extent.first_block, end = extent.end();
  auto after = runs.lower_bound(first);
  if (after != runs.end() && after->first == end) {
    end = after->second;
    after = runs.erase(after);
  }
  if (after != runs.begin() && std::prev(after)->second == first) first = std::prev(after)->first;
  runs[first] = end;
}

void RemoveRun(Runs& runs, const Extent& extent) {
  const auto run = std::prev(runs.upper_bound(extent.first_block));
  const auto [first, end] = *run;
  runs.erase(run);
  if (first < extent.first_block) runs[first] = extent.first_block;
  if (extent.end() < end) runs[extent.end()] = end;
}

bool SameSums(const Holding& a, const Holding& b) {
  return a.leases == b.leases && a.blocks == b.blocks && a.bytes == b.bytes && a.offered_bytes == b.offered_bytes &&
         a.revoking_bytes == b.revoking_bytes && a.stay == b.stay && a.revoking == b.revoking;
}

}  // namespace

void LeaseTable::Insert(Record record) {
  const LeaseId id = record.lease.id;
  CHECK(Find(id) == nullptr) << "lease " << id << " twice";
  record.order = next_order_++;
  record.donor = parties_.Hold(record.lease.donor);
  record.borrower = parties_.Hold(record.lease.borrower);
  changes_.push_back({.lease = record.lease, .before = std::nullopt});
  Index(*(records_[id] = std::make_unique<Record>(std::move(record))));
}

void LeaseTable::Accept(LeaseId id, Epoch epoch) {
  Record& record = *records_.at(id);
  CHECK(!record.lease.epoch.has_value()) << "lease " << id << " was accepted before";
  answers_.erase({record.answer_by, id});
  const LeaseState before = record.lease.state;
  Set(record, before == LeaseState::kOffered ? LeaseState::kGranted : before, epoch);
  changes_.push_back({.lease = record.lease, .before = before});
}

absl::Status LeaseTable::Step(LeaseId id, LeaseState to) {
  const auto it = records_.find(id);
  CHECK(it != records_.end()) << "no lease " << id;
  Record& record = *it->second;
  const LeaseState before = record.lease.state;
  RETURN_IF_ERROR(CheckStep(id.value(), before, to));
  if (!HasEnded(to)) {
    Set(record, to, record.lease.epoch);
    changes_.push_back({.lease = record.lease, .before = before});
    return absl::OkStatus();
  }
  Remove(record);
  record.lease.state = to;
  changes_.push_back({.lease = std::move(record.lease), .before = before});
  records_.erase(it);
  return absl::OkStatus();
}

void LeaseTable::MustStep(LeaseId id, LeaseState to) {
  const absl::Status status = Step(id, to);
  CHECK(status.ok()) << status;
}

void LeaseTable::AskToRevoke(LeaseId id, RevokeReason reason) {
  Lease& lease = records_.at(id)->lease;
  if (lease.state == LeaseState::kRevoking) return;
  lease.revoke_reason = reason;
  MustStep(id, LeaseState::kRevoking);
}

void LeaseTable::Decline(LeaseId id, absl::Time until) {
  const Lease& lease = records_.at(id)->lease;
  declined_.push_back({.donor = parties_.Hold(lease.donor), .extent = lease.extent, .until = until});
  MustStep(id, LeaseState::kReleased);
}

const Record* LeaseTable::Find(LeaseId id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : it->second.get();
}

const LeaseTable::Side& LeaseTable::SideOf(PartyId party) const {
  static const Side nothing;
  return party.value() < sides_.size() ? sides_[party.value()] : nothing;
}

const Holding& LeaseTable::BorrowedByModel(const std::string& model_name) const {
  static const Holding nothing;
  const auto it = models_.find(model_name);
  return it == models_.end() ? nothing : it->second;
}

const Holding& LeaseTable::PairOf(PartyId donor, PartyId borrower) const {
  static const Holding nothing;
  const std::vector<Pair>& pairs = PairsOf(donor);
  const auto pair = FindPair(pairs, borrower);
  return pair == pairs.end() || pair->borrower != borrower ? nothing : pair->holding;
}

std::vector<Extent> LeaseTable::TakenOf(PartyId donor) const {
  std::vector<Extent> taken;
  for (const auto& [first, end] : SideOf(donor).runs) {
    taken.push_back({.first_block = first, .num_blocks = end - first});
  }
  for (const Declined& declined : declined_) {
    if (declined.donor == donor) taken.push_back(declined.extent);
  }
  return taken;
}

// Leases of one donor share no block: only the last one that begins before `extent` may reach into it.
std::vector<LeaseId> LeaseTable::Overlapping(PartyId donor, const Extent& extent) const {
  std::vector<LeaseId> ids;
  const Holding& lent = LentBy(donor);
  for (const Places* places : {&lent.stay, &lent.revoking}) {
    auto at = places->lower_bound({extent.first_block, LeaseId(INT64_MIN)});
    if (at != places->begin() && std::prev(at)->second->lease.extent.Overlaps(extent)) --at;
    for (; at != places->end() && at->second->lease.extent.Overlaps(extent); ++at) {
      ids.push_back(at->second->lease.id);
    }
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
    records_.at(id)->answer_by += lateness;
    answers_.emplace(when + lateness, id);
  }
}

void LeaseTable::SetAnswerBy(LeaseId id, absl::Time answer_by) {
  absl::Time& known = records_.at(id)->answer_by;
  answers_.erase({known, id});
  answers_.emplace(known = answer_by, id);
}

void LeaseTable::ForgetDeclined(absl::Time now) {
  for (; !declined_.empty() && declined_.front().until <= now; declined_.pop_front()) {
    parties_.Drop(declined_.front().donor);
  }
}

// All that count the record: the donor's, the borrower's, the pair's and the model's. REQUIRES: it is in the indexes.
std::array<Holding*, 4> LeaseTable::HoldingsOf(const Record& record) {
  Side& donor = sides_[record.donor.value()];
  return {&donor.lent, &sides_[record.borrower.value()].borrowed, &FindPair(donor.pairs, record.borrower)->holding,
          &models_.at(record.lease.borrower_model)};
}

// Changes a lease and the sums. REQUIRES: it is in the indexes.
void LeaseTable::Set(Record& record, LeaseState state, std::optional<Epoch> epoch) {
  Lease& lease = record.lease;
  const std::array<Holding*, 4> holdings = HoldingsOf(record);
  const bool moves = (state == LeaseState::kRevoking) != (lease.state == LeaseState::kRevoking);
  for (Holding* holding : holdings) {
    Count(*holding, lease, -1);
    if (moves) PlacesOf(*holding, lease.state).erase(PlaceOf(lease));
  }
  lease.state = state;
  lease.epoch = epoch;
  for (Holding* holding : holdings) {
    Count(*holding, lease, 1);
    if (moves) PlacesOf(*holding, state).emplace(PlaceOf(lease), &record);
  }
}

void LeaseTable::Index(const Record& record) {
  sides_.resize(std::max<size_t>({sides_.size(), record.donor.value() + 1, record.borrower.value() + 1}));
  Side& donor = sides_[record.donor.value()];
  const auto pair = FindPair(donor.pairs, record.borrower);
  if (pair == donor.pairs.end() || pair->borrower != record.borrower) {
    donor.pairs.insert(pair, {.borrower = record.borrower, .holding = {}});
  }
  models_.try_emplace(record.lease.borrower_model);
  for (Holding* holding : HoldingsOf(record)) {
    Count(*holding, record.lease, 1);
    PlacesOf(*holding, record.lease.state).emplace(PlaceOf(record.lease), &record);
  }
  AddRun(donor.runs, record.lease.extent);
  if (!record.lease.epoch.has_value()) answers_.emplace(record.answer_by, record.lease.id);
}

// Takes it out of the indexes.
void LeaseTable::Remove(const Record& record) {
  for (Holding* holding : HoldingsOf(record)) {
    Count(*holding, record.lease, -1);
    PlacesOf(*holding, record.lease.state).erase(PlaceOf(record.lease));
  }
  Side& donor = sides_[record.donor.value()];
  const auto pair = FindPair(donor.pairs, record.borrower);
  if (pair->holding.leases == 0) donor.pairs.erase(pair);
  const auto model = models_.find(record.lease.borrower_model);
  if (model->second.leases == 0) models_.erase(model);
  RemoveRun(donor.runs, record.lease.extent);
  answers_.erase({record.answer_by, record.lease.id});
  parties_.Drop(record.donor);
  parties_.Drop(record.borrower);
}

absl::Status LeaseTable::CheckInvariants() const {
  for (const auto& [id, record] : records_) RETURN_IF_ERROR(CheckLease(record->lease));
  std::map<std::tuple<PartyId, int64_t, LeaseId>, const Lease*> by_place;
  for (const auto& [id, record] : records_) {
    by_place[{record->donor, record->lease.extent.first_block, id}] = &record->lease;
  }
  const Lease* before = nullptr;
  for (const auto& [place, lease] : by_place) {
    if (before != nullptr && before->donor == lease->donor && before->extent.Overlaps(lease->extent)) {
      return absl::InternalError(absl::StrCat("leases ", before->id.value(), " and ", lease->id.value(), " of donor ",
                                              lease->donor.name, " share a block"));
    }
    before = lease;
  }
  return CheckSums();
}

// The indexes against those of a table that is made anew from the leases.
absl::Status LeaseTable::CheckSums() const {
  LeaseTable fresh(parties_);
  fresh.sides_.resize(sides_.size());
  for (const auto& [id, record] : records_) fresh.Index(*record);
  if (fresh.answers_ != answers_) return absl::InternalError("the deadlines of offers are not those of the leases");
  const auto same_pair = [](const Pair& a, const Pair& b) {
    return a.borrower == b.borrower && SameSums(a.holding, b.holding);
  };
  for (size_t party = 0; party < sides_.size(); ++party) {
    const Side &a = fresh.sides_[party], &b = sides_[party];
    if (!SameSums(a.borrowed, b.borrowed)) return absl::InternalError("what borrowers hold does not add up");
    if (!SameSums(a.lent, b.lent) || a.runs != b.runs ||
        !std::equal(a.pairs.begin(), a.pairs.end(), b.pairs.begin(), b.pairs.end(), same_pair)) {
      return absl::InternalError("what donors lend does not add up");
    }
  }
  if (fresh.models_.size() != models_.size()) return absl::InternalError("models that borrow nothing are remembered");
  for (const auto& [model_name, borrowed] : models_) {
    if (SameSums(fresh.BorrowedByModel(model_name), borrowed)) continue;
    return absl::InternalError(absl::StrCat("what model ", model_name, " borrows does not add up"));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::broker::ledger
