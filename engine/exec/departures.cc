// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/departures.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "common/base/units.h"
#include "common/log/log.h"

namespace swiftcache::engine::exec {

using coordinator::DrainMessage;
using kv::Move;

namespace {

constexpr int kIdleDivisor = 100;  // copies of idle blocks take this part of a drain's time, for all drains of a need
constexpr absl::Duration kBetweenDrains = absl::Milliseconds(50);    // drains closer than this are of one need
constexpr absl::Duration kHeldBackWithin = absl::Milliseconds(100);  // what must be saved sooner is not read until then
constexpr int64_t kDrainBatch = 8;  // moves planned before the clock is read again, and
constexpr int64_t kDrainBatchBytes = kMiB;
// So many are on their way out of leases at once: where the time is up, these still are.
constexpr int64_t kSavedAtOnceBytes = 8 * kMiB;
constexpr int kSpareDivisor = 4;  // this part more room than its blocks need: what is computed meanwhile goes there too

}  // namespace

// What its running sequences read goes where there is room, as far as the time suffices; then they are computed again
// without it.
void Departures::Begin(const DrainMessage& message) {
  parts_.coordinator->step_reads().Handled(message.id);
  LeasedRegion* region = parts_.regions->Find(message.id);
  if (region == nullptr) {
    parts_.urgency->Forget(message.id);
    parts_.coordinator->Drained(message.id);
    return;
  }
  const absl::Time now = parts_.clock->Now();
  lease::Departure& departure = region->departure;
  const bool goes_on = departure.draining() || departure.lost();
  departure.Drain(message.until, now,
                  {.revoke_deadline = options_.revoke_deadline, .has_elsewhere = options_.leases_are_mapped});
  if (goes_on) return parts_.cache->RegionDraining(region->region);  // what was emptied was attachable
  LOG(INFO) << "lease " << region->lease << " is drained: " << parts_.cache->region(region->region).used
            << " of its blocks are in use";
  departing_.insert(region->region);
  if (departure.waiting()) return parts_.urgency->NotYet(message.id);
  // A donor in need revokes many leases at once, and waits for the last of them.
  if (!departure.given_back() && now - idle_moves_until_ > kBetweenDrains) {
    idle_moves_until_ = now + (message.until - now) / kIdleDivisor;
  }
  parts_.cache->RegionDraining(region->region);
  GoOnDraining(*region);
}

void Departures::NoRoom() {
  for (const kv::RegionId departing : departing_) parts_.regions->at(departing).departure.NoRoom();
}

// What lies in leases of one donor goes to those of others. Each that leaves waits for room for all that leaves its
// donor, since that will all go; what others that leave have still to move, and spills, have their room first.
void Departures::EmptyThoseThatCan() {
  homeless_blocks_ = 0;
  if (departing_.empty()) return;
  const absl::Time now = parts_.clock->Now();
  if (now >= NextSlice()) slice_until_ = now + kIdleSlice;
  absl::btree_map<std::string, int64_t> waiting;  // blocks, by donor
  int64_t promised = 0;
  for (const kv::RegionId departing : departing_) {
    const LeasedRegion& region = parts_.regions->at(departing);
    const kv::PlaceCounts counts = parts_.cache->region(departing);
    if (region.departure.waiting()) waiting[region.donor] += counts.used + counts.cached;
    if (!region.departure.draining()) continue;
    const int64_t leave = counts.used + (region.departure.emptying() ? counts.cached : 0);
    promised += std::max<int64_t>(0, leave - parts_.cache->num_moves_from(departing));
  }
  if (waiting.empty()) return;
  int64_t room = parts_.cache->RoomAtHome() - promised;
  for (const auto& [id, region] : *parts_.regions) {
    if (region.departure.in_use() && !waiting.contains(region.donor)) room += parts_.cache->region(id).free;
  }
  for (auto& [donor, blocks] : waiting) {
    blocks += blocks / kSpareDivisor;
    if (blocks == 0 || blocks <= room) room -= std::exchange(blocks, 0);
    homeless_blocks_ += blocks;
  }
  if (homeless_blocks_ > 0) homeless_blocks_ = std::max<int64_t>(0, homeless_blocks_ - room);
  for (const kv::RegionId departing : departing_) {
    LeasedRegion& region = parts_.regions->at(departing);
    if (!region.departure.waiting()) continue;
    if (waiting[region.donor] > 0 && now < region.departure.leaves_at()) continue;
    region.departure.Empty();
    parts_.cache->RegionDraining(departing, /*attachable=*/true);
  }
}

void Departures::Drain(LeasedRegion& region) {
  lease::Departure& departure = region.departure;
  const int64_t batch = std::clamp<int64_t>(kDrainBatchBytes / parts_.own->block_bytes(), 1, kDrainBatch);
  while (region.view.Holds()) {
    const bool idle = SavesIdle(region);
    if (parts_.clock->Now() >= MovesUntil(region, idle) || !MayMoveMore(region, idle)) return;
    const int64_t most = idle ? std::min(batch, parts_.cache->WorthSaving(region.region)) : batch;
    const std::vector<Move> moves = parts_.cache->PlanDrain(region.region, most);
    region.has_more_to_move = !moves.empty();
    if (moves.empty()) {
      // What is on its way may come back: where it went leaves itself.
      if (parts_.cache->num_moves_from(region.region) == 0) departure.Emptied();
      return;
    }
    parts_.copies->Start(moves);
    NoteLost(parts_.copies->FinishFetches());
    if (departure.lost()) return;
  }
}

// Stores to other leases end later; their blocks are in use here until then. Where nothing is on its way any more, or the
// time is up, what is left is not saved.
void Departures::GoOnDraining(LeasedRegion& region) {
  Drain(region);
  const bool in_use = parts_.cache->region(region.region).used > 0;
  if (!region.departure.draining() || !in_use || IsSaving(region) || IsEmptying(region)) return;
  parts_.cache->RegionDraining(region.region);
  ResetReaders(region);
}

bool Departures::MaySaveMore() const {
  const int64_t stores = parts_.copies->num_stores_from_leases();
  return stores == 0 || stores * parts_.own->block_bytes() < kSavedAtOnceBytes;
}

// Nothing there is in use, and what is worth saving leaves.
bool Departures::SavesIdle(const LeasedRegion& region) const {
  return region.departure.draining() && !region.departure.emptying() && !region.departure.given_back() &&
         region.has_more_to_move && parts_.clock->Now() < region.departure.save_idle_until() && region.view.Holds() &&
         parts_.cache->region(region.region).used == 0 && parts_.copies->StoresFlow() &&
         parts_.cache->WorthSaving(region.region) > 0;
}

absl::Time Departures::MovesUntil(const LeasedRegion& region, bool saves_idle) const {
  const lease::Departure& departure = region.departure;
  if (departure.emptying()) return slice_until_;
  if (parts_.cache->region(region.region).used > 0) return departure.save_until();
  if (saves_idle) return departure.save_idle_until();
  if (departure.given_back()) return absl::InfinitePast();  // what goes back unasked is cold
  return std::min(departure.save_until(), idle_moves_until_);
}

// A first move out of a lease waits for none out of others, unless it saves what is idle.
bool Departures::MayMoveMore(const LeasedRegion& region, bool saves_idle) const {
  if (region.departure.emptying()) return parts_.copies->MayStore();
  const bool under_way = parts_.cache->num_moves_from(region.region) > 0;
  if (under_way && !region.has_more_to_move) return false;
  return !(under_way || saves_idle) || MaySaveMore();
}

bool Departures::IsSaving(const LeasedRegion& region) const {
  return region.departure.draining() && parts_.clock->Now() < region.departure.save_until() &&
         (parts_.cache->num_moves_from(region.region) > 0 || SavesIdle(region));
}

bool Departures::IsEmptying(const LeasedRegion& region) const {
  return region.departure.emptying() && region.view.Holds() && parts_.clock->Now() < region.departure.save_until();
}

bool Departures::saves_blocks() const {
  return std::any_of(departing_.begin(), departing_.end(), [this](kv::RegionId departing) {
    const LeasedRegion& region = parts_.regions->at(departing);
    return IsSaving(region) && region.departure.save_until() - parts_.clock->Now() <= kHeldBackWithin;
  });
}

void Departures::Lose(kv::LeaseId lease) {
  LeasedRegion* region = parts_.regions->Find(lease);
  if (region == nullptr) {  // dropped already, when a step found it lost
    parts_.urgency->Forget(lease);
    parts_.coordinator->Dropped(lease);
    return;
  }
  region->departure.Lose();
  departing_.insert(region->region);
  parts_.cache->RegionDraining(region->region);
  ResetReaders(*region);
}

void Departures::NoteLost(const std::vector<kv::LeaseId>& leases) {
  for (const kv::LeaseId lease : leases) {
    Lose(lease);
    parts_.coordinator->GenerationChanged(lease);
  }
}

void Departures::ResetReaders(LeasedRegion& region) {
  std::vector<sched::Sequence*> readers;
  const kv::Tiers::Readers reads = parts_.cache->ReadersOf(region.region);
  for (sched::Sequence* sequence : parts_.scheduler->running()) {
    if (reads.Has(sequence->blocks)) readers.push_back(sequence);
  }
  for (sched::Sequence* sequence : readers) parts_.scheduler->Reset(sequence);
  region.resets += static_cast<int64_t>(readers.size());
}

absl::Time Departures::next_change() const {
  absl::Time next = absl::InfiniteFuture();
  for (const kv::RegionId departing : departing_) {
    const LeasedRegion& region = parts_.regions->at(departing);
    next = std::min(next, region.departure.leaves_at());
    if (IsSaving(region)) next = std::min(next, region.departure.save_until());
    if (SavesIdle(region)) next = std::min(next, region.departure.save_idle_until());
    if (IsEmptying(region) && parts_.copies->MayStore()) next = std::min(next, NextSlice());
  }
  return next;
}

Departures::Gone Departures::Finish() {
  EmptyThoseThatCan();
  for (const kv::RegionId departing : departing_) {
    LeasedRegion& region = parts_.regions->at(departing);
    const bool in_use = parts_.cache->region(departing).used > 0;
    if (region.departure.draining() && (in_use || IsEmptying(region) || SavesIdle(region))) GoOnDraining(region);
  }
  Gone gone;
  for (auto it = departing_.begin(); it != departing_.end();) {
    const LeasedRegion& region = parts_.regions->at(*it);
    if (!IsOver(region)) {
      ++it;
      continue;
    }
    (region.departure.given_back() ? gone.given_back : gone.taken) += parts_.cache->region(region.region).total;
    Drop(region);
    parts_.regions->Remove(*it);
    it = departing_.erase(it);
  }
  return gone;
}

bool Departures::IsOver(const LeasedRegion& region) const {
  return !region.departure.waiting() && parts_.cache->num_moves_of(region.region) == 0 &&
         parts_.cache->region(region.region).used == 0 && !IsEmptying(region) && !SavesIdle(region);
}

void Departures::Drop(const LeasedRegion& region) {
  const int64_t dropped = parts_.cache->DropRegion(region.region);
  LOG(INFO) << "lease " << region.lease << " is out of use with " << dropped << " blocks, after " << region.resets
            << " resets";
  parts_.urgency->Forget(region.lease);
  if (region.departure.lost()) {
    parts_.coordinator->Dropped(region.lease);
  } else {
    parts_.coordinator->Drained(region.lease);
  }
}

}  // namespace swiftcache::engine::exec
