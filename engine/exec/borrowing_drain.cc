// SPDX-License-Identifier: Apache-2.0
// The ends of leases at their borrower: what lies there is moved or dropped, and who reads it is reset.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/units.h"
#include "common/log/log.h"
#include "engine/exec/borrowing.h"

namespace swiftcache::engine::exec {

using coordinator::DrainMessage;
using coordinator::LoseMessage;
using kv::Move;

namespace {

constexpr int kDrainDivisor = 2;   // copies of a drain may take this part of the time left
constexpr int kIdleDivisor = 100;  // and those of blocks that nobody runs on this part, for all drains of a need
constexpr absl::Duration kBetweenDrains = absl::Milliseconds(50);  // drains closer than this are of one need
constexpr absl::Duration kStep = absl::Milliseconds(100);  // blocks that must be saved sooner are not read until then
constexpr int64_t kDrainBatch = 8;                         // moves planned before the clock is read again, and
constexpr int64_t kDrainBatchBytes = kMiB;
// Who has so much time for a drain, as where the donor ends in order, first asks others for memory, for a part of that
// time, so that what lies there moves.
constexpr absl::Duration kUnhurried = absl::Seconds(1), kRoomPatience = absl::Seconds(2);
constexpr int kUnhurriedDeadlines = 2;  // of donors in need: theirs is the shorter time
constexpr int kRoomDivisor = 4;
constexpr int kSpareDivisor = 4;  // this part more room than its blocks need: spills go there too
constexpr absl::Duration kIdleSlice = absl::Milliseconds(5);  // of its moves of idle blocks, between two steps

}  // namespace

// What its running sequences read goes where there is room, as far as the time suffices; then they are computed again
// without it.
void Borrowing::Do(const DrainMessage& message) {
  parts_.coordinator->step_reads().Handled(message.id);
  LeasedRegion* region = Find(message.id);
  if (region == nullptr) {
    parts_.urgency->Forget(message.id);
    parts_.coordinator->Drained(message.id);
    return;
  }
  const absl::Time now = parts_.clock->Now();
  const absl::Duration time = message.until - now;
  const absl::Time save_until = now + time / kDrainDivisor;
  if (region->phase == LeasedRegion::Phase::kDraining) return Hasten(*region, save_until);
  if (region->phase != LeasedRegion::Phase::kInUse) return;
  region->save_until = save_until;
  // What is not mapped goes to no other lease.
  const bool waits = !region->given_back && leases_are_mapped() &&
                     time >= std::max(kUnhurried, kUnhurriedDeadlines * options_.revoke_deadline);
  if (waits) {
    parts_.urgency->NotYet(message.id);
    region->leaves_at = now + std::min(time / kRoomDivisor, kRoomPatience);
    leaving_.insert(region->region);
    return;
  }
  // A donor in need revokes many leases at once, and waits for the last of them.
  if (!region->given_back && now - idle_moves_until_ > kBetweenDrains) idle_moves_until_ = now + time / kIdleDivisor;
  leaving_.erase(region->region);  // it had more time till now
  StartDraining(*region, /*unhurried=*/false);
}

// Its donor had given more time, and needs the memory now.
void Borrowing::Hasten(LeasedRegion& region, absl::Time save_until) {
  region.save_until = std::min(region.save_until, save_until);
  region.may_empty = false;
}

// What lies in leases of one donor goes to those of others. Each that leaves waits for room for all that leaves its
// donor, since that will all go.
void Borrowing::LeaveThoseThatCan() {
  homeless_blocks_ = 0;
  if (leaving_.empty() && ending_.empty()) return;
  slice_until_ = parts_.clock->Now() + kIdleSlice;
  if (leaving_.empty()) return;
  int64_t room = 0;
  absl::flat_hash_map<std::string, int64_t> room_at, blocks_at;
  for (const auto& [id, region] : regions_) {
    const kv::PlaceCounts counts = parts_.cache->region(id);
    if (leaving_.contains(id)) {
      blocks_at[region.donor] += counts.used + counts.cached;
    } else if (region.phase == LeasedRegion::Phase::kInUse) {
      room += counts.free;
      room_at[region.donor] += counts.free;
    }
  }
  for (auto& [donor, blocks] : blocks_at) {
    blocks = std::max<int64_t>(0, blocks + blocks / kSpareDivisor - (room - room_at[donor]));
    homeless_blocks_ += blocks;
  }
  for (const kv::RegionId leaving : std::set(leaving_)) {
    if (!leaving_.contains(leaving)) continue;  // it was lost meanwhile
    LeasedRegion& region = regions_.at(leaving);
    if (blocks_at[region.donor] > 0 && parts_.clock->Now() < region.leaves_at) continue;
    leaving_.erase(leaving);
    StartDraining(region, /*unhurried=*/true);
  }
}

void Borrowing::StartDraining(LeasedRegion& region, bool unhurried) {
  region.phase = LeasedRegion::Phase::kDraining;
  region.may_empty = unhurried;
  ending_.insert(region.region);
  parts_.cache->RegionDraining(region.region, /*attachable=*/region.may_empty);
  GoOnDraining(region);
}

void Borrowing::Drain(LeasedRegion& region) {
  // What goes back unasked is cold.
  const absl::Time idle_until =
      region.given_back ? absl::InfinitePast() : std::min(region.save_until, idle_moves_until_);
  const int64_t batch = std::clamp<int64_t>(kDrainBatchBytes / parts_.own->block_bytes(), 1, kDrainBatch);
  while (region.view.Holds()) {
    const bool in_use = parts_.cache->region(region.region).used > 0;
    const absl::Time until = region.may_empty ? slice_until_ : in_use ? region.save_until : idle_until;
    if (parts_.clock->Now() >= until || (region.may_empty && !MayStore())) return;
    const std::vector<Move> moves = parts_.cache->PlanDrain(region.region, batch);
    if (moves.empty()) {
      region.may_empty = false;
      return;
    }
    Start(moves);
    FinishFetches();
    if (region.phase == LeasedRegion::Phase::kLost) return;
  }
}

// Stores to other leases end later; their blocks are in use here until then. Where nothing is on its way any more, or the
// time is up, what is left is not saved.
void Borrowing::GoOnDraining(LeasedRegion& region) {
  Drain(region);
  const bool in_use = parts_.cache->region(region.region).used > 0;
  if (region.phase != LeasedRegion::Phase::kDraining || !in_use || IsSaving(region) || IsEmptying(region)) return;
  parts_.cache->RegionDraining(region.region);
  ResetReaders(region);
}

bool Borrowing::IsSaving(const LeasedRegion& region) const {
  return region.phase == LeasedRegion::Phase::kDraining && parts_.cache->region(region.region).used > 0 &&
         parts_.cache->num_moves_of(region.region) > 0 && parts_.clock->Now() < region.save_until;
}

bool Borrowing::IsEmptying(const LeasedRegion& region) const {
  return region.phase == LeasedRegion::Phase::kDraining && region.may_empty && region.view.Holds() &&
         parts_.clock->Now() < region.save_until;
}

bool Borrowing::saves_blocks() const {
  return std::any_of(ending_.begin(), ending_.end(), [this](kv::RegionId ending) {
    const LeasedRegion& region = regions_.at(ending);
    return IsSaving(region) && region.save_until - parts_.clock->Now() <= kStep;
  });
}

// What copies under way read is read as long as the step, since their end is not heard of before.
bool Borrowing::BeginReads(std::span<const kv::LeaseId> leases) {
  absl::flat_hash_set<kv::LeaseId> read(leases.begin(), leases.end());
  for (const Fetch& fetch : fetches_) {
    for (const Move& move : fetch.moves) read.insert(regions_.at(move.from.region).lease);
  }
  for (const auto& [ticket, store] : stores_) {
    if (!store.move.from.local()) read.insert(regions_.at(store.move.from.region).lease);
  }
  std::vector<kv::LeaseId> unread, held;
  for (const auto& [region, leased] : regions_) {
    if (read.contains(leased.lease) || leased.phase == LeasedRegion::Phase::kLost) continue;
    (parts_.cache->region(region).used > 0 ? held : unread).push_back(leased.lease);
  }
  return parts_.coordinator->step_reads().Begin(std::move(unread), std::move(held));
}

void Borrowing::EndReads() {
  const std::vector<kv::LeaseId> taken = parts_.coordinator->step_reads().End();
  for (const kv::LeaseId lease : taken) Forget(regions_.at(region_of_.at(lease)));
  if (!taken.empty()) FinishRegions();
}

// Its memory is another's.
void Borrowing::Forget(LeasedRegion& region) {
  region.phase = LeasedRegion::Phase::kLost;
  leaving_.erase(region.region);
  ending_.insert(region.region);
  parts_.cache->RegionDraining(region.region);
  ResetReaders(region);
}

void Borrowing::Do(const LoseMessage& message) {
  LeasedRegion* region = Find(message.id);
  if (region == nullptr) {  // dropped already, when a step found it lost
    parts_.urgency->Forget(message.id);
    parts_.coordinator->Dropped(message.id);
    return;
  }
  Forget(*region);
}

void Borrowing::NoteLost(const std::vector<kv::LeaseId>& leases) {
  for (const kv::LeaseId lease : leases) {
    Do(LoseMessage{lease});
    parts_.coordinator->GenerationChanged(lease);
  }
}

void Borrowing::ResetReaders(LeasedRegion& region) {
  std::vector<sched::Sequence*> readers;
  const kv::Tiers::Readers reads = parts_.cache->ReadersOf(region.region);
  for (sched::Sequence* sequence : parts_.scheduler->running()) {
    if (reads.Has(sequence->blocks)) readers.push_back(sequence);
  }
  for (sched::Sequence* sequence : readers) parts_.scheduler->Reset(sequence);
  region.resets += static_cast<int64_t>(readers.size());
}

void Borrowing::FinishRegions() {
  LeaveThoseThatCan();
  for (const kv::RegionId ending : ending_) {
    LeasedRegion& region = regions_.at(ending);
    const bool in_use = parts_.cache->region(ending).used > 0;
    if (region.phase == LeasedRegion::Phase::kDraining && (in_use || IsEmptying(region))) GoOnDraining(region);
  }
  for (auto it = ending_.begin(); it != ending_.end();) {
    const LeasedRegion region = regions_.at(*it);
    if (parts_.cache->num_moves_of(region.region) > 0 || parts_.cache->region(region.region).used > 0 ||
        IsEmptying(region)) {
      ++it;
      continue;
    }
    if (region.given_back) lendable_blocks_ += parts_.cache->region(region.region).total;  // as far as is known
    const int64_t dropped = parts_.cache->DropRegion(region.region);
    LOG(INFO) << "lease " << region.lease << " is out of use with " << dropped << " blocks, after " << region.resets
              << " resets";
    parts_.urgency->Forget(region.lease);
    if (region.phase == LeasedRegion::Phase::kLost) {
      parts_.coordinator->Dropped(region.lease);
    } else {
      parts_.coordinator->Drained(region.lease);
    }
    regions_.erase(region.region);
    region_of_.erase(region.lease);
    it = ending_.erase(it);
    UpdatePotential();
  }
}

}  // namespace swiftcache::engine::exec
