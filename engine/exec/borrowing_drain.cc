// SPDX-License-Identifier: Apache-2.0
// The ends of leases at their borrower: what lies there is moved or dropped, and who reads it is reset.
#include <algorithm>
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

constexpr int kIdleDivisor = 100;  // copies of idle blocks take this part of a drain's time, for all drains of a need
constexpr absl::Duration kBetweenDrains = absl::Milliseconds(50);    // drains closer than this are of one need
constexpr absl::Duration kHeldBackWithin = absl::Milliseconds(100);  // what must be saved sooner is not read until then
constexpr int64_t kDrainBatch = 8;  // moves planned before the clock is read again, and
constexpr int64_t kDrainBatchBytes = kMiB;
// So many are on their way out of leases at once: where the time is up, these still are.
constexpr int64_t kSavedAtOnceBytes = 8 * kMiB;
constexpr int kStuckDivisor = 4;  // who waits for a store for this part of a revocation's time sends no more there
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
  lease::Departure& departure = region->departure;
  const bool goes_on = departure.draining() || departure.lost();
  departure.Drain(message.until, now,
                  {.revoke_deadline = options_.revoke_deadline, .has_elsewhere = leases_are_mapped()});
  if (goes_on) return;
  LOG(INFO) << "lease " << region->lease << " is drained: " << parts_.cache->region(region->region).used
            << " of its blocks are in use";
  departing_.insert(region->region);
  if (departure.waiting()) return parts_.urgency->NotYet(message.id);
  // A donor in need revokes many leases at once, and waits for the last of them.
  if (!departure.given_back() && now - idle_moves_until_ > kBetweenDrains) {
    idle_moves_until_ = now + (message.until - now) / kIdleDivisor;
  }
  StartDraining(*region);
}

// What lies in leases of one donor goes to those of others. Each that leaves waits for room for all that leaves its
// donor, since that will all go.
void Borrowing::EmptyThoseThatCan() {
  homeless_blocks_ = 0;
  if (departing_.empty()) return;
  slice_until_ = parts_.clock->Now() + kIdleSlice;
  const auto waits = [this](kv::RegionId departing) { return regions_.at(departing).departure.waiting(); };
  if (std::none_of(departing_.begin(), departing_.end(), waits)) return;
  int64_t room = 0;
  absl::flat_hash_map<std::string, int64_t> room_at, blocks_at;
  for (const auto& [id, region] : regions_) {
    const kv::PlaceCounts counts = parts_.cache->region(id);
    if (region.departure.waiting()) {
      blocks_at[region.donor] += counts.used + counts.cached;
    } else if (region.departure.in_use()) {
      room += counts.free;
      room_at[region.donor] += counts.free;
    }
  }
  for (auto& [donor, blocks] : blocks_at) {
    blocks = std::max<int64_t>(0, blocks + blocks / kSpareDivisor - (room - room_at[donor]));
    homeless_blocks_ += blocks;
  }
  for (const kv::RegionId departing : departing_) {
    LeasedRegion& region = regions_.at(departing);
    if (!region.departure.waiting()) continue;
    if (blocks_at[region.donor] > 0 && parts_.clock->Now() < region.departure.leaves_at()) continue;
    region.departure.Empty();
    StartDraining(region);
  }
}

void Borrowing::StartDraining(LeasedRegion& region) {
  parts_.cache->RegionDraining(region.region, /*attachable=*/region.departure.emptying());
  GoOnDraining(region);
}

void Borrowing::Drain(LeasedRegion& region) {
  lease::Departure& departure = region.departure;
  const int64_t batch = std::clamp<int64_t>(kDrainBatchBytes / parts_.own->block_bytes(), 1, kDrainBatch);
  while (region.view.Holds()) {
    const bool idle = SavesIdle(region);
    if (parts_.clock->Now() >= MovesUntil(region, idle) || !MayMoveMore(region, idle)) return;
    const int64_t most = idle ? std::min(batch, parts_.cache->WorthSaving(region.region)) : batch;
    const std::vector<Move> moves = parts_.cache->PlanDrain(region.region, most);
    region.has_more_to_move = !moves.empty();
    if (moves.empty()) return departure.Emptied();
    Start(moves);
    FinishFetches();
    if (departure.lost()) return;
  }
}

// Stores to other leases end later; their blocks are in use here until then. Where nothing is on its way any more, or the
// time is up, what is left is not saved.
void Borrowing::GoOnDraining(LeasedRegion& region) {
  Drain(region);
  const bool in_use = parts_.cache->region(region.region).used > 0;
  if (!region.departure.draining() || !in_use || IsSaving(region) || IsEmptying(region)) return;
  parts_.cache->RegionDraining(region.region);
  ResetReaders(region);
}

// False: a donor takes its time over a store, and what is sent to it now would not be there in time.
bool Borrowing::StoresFlow() const {
  const absl::Time now = parts_.clock->Now();
  return std::none_of(stores_.begin(), stores_.end(), [&](const auto& store) {
    return now - store.second.waits_since > options_.revoke_deadline / kStuckDivisor;
  });
}

bool Borrowing::MaySaveMore() const {
  const int64_t stores =
      std::count_if(stores_.begin(), stores_.end(), [](const auto& store) { return !store.second.move.from.local(); });
  return stores == 0 || stores * parts_.own->block_bytes() < kSavedAtOnceBytes;
}

// Nothing there is in use, and what is worth saving leaves.
bool Borrowing::SavesIdle(const LeasedRegion& region) const {
  return region.departure.draining() && !region.departure.emptying() && !region.departure.given_back() &&
         region.has_more_to_move && parts_.clock->Now() < region.departure.save_idle_until() && region.view.Holds() &&
         parts_.cache->region(region.region).used == 0 && StoresFlow() && parts_.cache->WorthSaving(region.region) > 0;
}

absl::Time Borrowing::MovesUntil(const LeasedRegion& region, bool saves_idle) const {
  const lease::Departure& departure = region.departure;
  if (departure.emptying()) return slice_until_;
  if (parts_.cache->region(region.region).used > 0) return departure.save_until();
  if (saves_idle) return departure.save_idle_until();
  if (departure.given_back()) return absl::InfinitePast();  // what goes back unasked is cold
  return std::min(departure.save_until(), idle_moves_until_);
}

// A first move out of a lease waits for none out of others, unless it saves what is idle.
bool Borrowing::MayMoveMore(const LeasedRegion& region, bool saves_idle) const {
  if (region.departure.emptying()) return MayStore();
  const bool under_way = parts_.cache->num_moves_from(region.region) > 0;
  if (under_way && !region.has_more_to_move) return false;
  return !(under_way || saves_idle) || MaySaveMore();
}

bool Borrowing::IsSaving(const LeasedRegion& region) const {
  return region.departure.draining() && parts_.clock->Now() < region.departure.save_until() &&
         (parts_.cache->num_moves_from(region.region) > 0 || SavesIdle(region));
}

bool Borrowing::IsEmptying(const LeasedRegion& region) const {
  return region.departure.emptying() && region.view.Holds() && parts_.clock->Now() < region.departure.save_until();
}

bool Borrowing::saves_blocks() const {
  return std::any_of(departing_.begin(), departing_.end(), [this](kv::RegionId departing) {
    const LeasedRegion& region = regions_.at(departing);
    return IsSaving(region) && region.departure.save_until() - parts_.clock->Now() <= kHeldBackWithin;
  });
}

// What copies under way read is read as long as the step, since their end is not heard of before.
bool Borrowing::BeginReads(std::span<const kv::LeaseId> leases, const Stake& stake) {
  const absl::flat_hash_set<kv::LeaseId> read(leases.begin(), leases.end());
  absl::flat_hash_set<kv::LeaseId> copied;
  for (const Fetch& fetch : fetches_) {
    for (const Move& move : fetch.moves) copied.insert(regions_.at(move.from.region).lease);
  }
  for (const auto& [ticket, store] : stores_) {
    if (!store.move.from.local()) copied.insert(regions_.at(store.move.from.region).lease);
  }
  std::vector<kv::LeaseId> unread, held;
  worth_more_.clear();
  worth_more_copied_.clear();
  const bool stores_flow = StoresFlow();
  for (const auto& [region, leased] : regions_) {
    const lease::Departure& departure = leased.departure;
    if (read.contains(leased.lease) || departure.lost()) continue;
    const int64_t used = parts_.cache->region(region).used;
    const bool saves_idle = stores_flow && !departure.draining() && !departure.given_back();
    const int64_t idle = saves_idle ? parts_.cache->WorthSaving(region) : 0;
    const bool worth_more =
        (used > 0 && stake.leaves_out_readers) || (used + idle) * options_.block_tokens > stake.tokens;
    if (copied.contains(leased.lease)) {
      if (worth_more && departure.in_use()) worth_more_copied_.push_back(leased.lease);
      continue;
    }
    if (worth_more) worth_more_.insert(leased.lease);
    (used > 0 || worth_more ? held : unread).push_back(leased.lease);
  }
  return parts_.coordinator->step_reads().Begin(std::move(unread), std::move(held));
}

std::vector<kv::LeaseId> Borrowing::WorthMoreThanStep() const {
  std::vector<kv::LeaseId> held = parts_.coordinator->step_reads().Held();
  std::erase_if(held, [this](kv::LeaseId lease) { return !worth_more_.contains(lease); });
  held.insert(held.end(), worth_more_copied_.begin(), worth_more_copied_.end());
  return held;
}

void Borrowing::EndReads() {
  const std::vector<kv::LeaseId> taken = parts_.coordinator->step_reads().End();
  for (const kv::LeaseId lease : taken) Forget(regions_.at(region_of_.at(lease)));
  if (!taken.empty()) FinishRegions();
}

// Its memory is another's.
void Borrowing::Forget(LeasedRegion& region) {
  region.departure.Lose();
  departing_.insert(region.region);
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
  EmptyThoseThatCan();
  for (const kv::RegionId departing : departing_) {
    LeasedRegion& region = regions_.at(departing);
    const bool in_use = parts_.cache->region(departing).used > 0;
    if (region.departure.draining() && (in_use || IsEmptying(region) || SavesIdle(region))) GoOnDraining(region);
  }
  for (auto it = departing_.begin(); it != departing_.end();) {
    const auto found = regions_.find(*it);
    const LeasedRegion& region = found->second;
    if (region.departure.waiting() || parts_.cache->num_moves_of(region.region) > 0 ||
        parts_.cache->region(region.region).used > 0 || IsEmptying(region) || SavesIdle(region)) {
      ++it;
      continue;
    }
    const int64_t blocks = parts_.cache->region(region.region).total;
    if (region.departure.given_back()) {
      lendable_blocks_ += blocks;  // as far as is known
    } else {
      NoteTaken(blocks);
    }
    const int64_t dropped = parts_.cache->DropRegion(region.region);
    LOG(INFO) << "lease " << region.lease << " is out of use with " << dropped << " blocks, after " << region.resets
              << " resets";
    parts_.urgency->Forget(region.lease);
    if (region.departure.lost()) {
      parts_.coordinator->Dropped(region.lease);
    } else {
      parts_.coordinator->Drained(region.lease);
    }
    region_of_.erase(region.lease);
    regions_.erase(found);
    it = departing_.erase(it);
    UpdatePotential();
  }
}

}  // namespace swiftcache::engine::exec
