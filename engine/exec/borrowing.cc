// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/borrowing.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/base/units.h"
#include "common/log/log.h"
#include "engine/kv/layer_stream.h"

namespace swiftcache::engine::exec {

using coordinator::LendableMessage;
using coordinator::StoredMessage;
using coordinator::UseMessage;
using kv::Move;

namespace {

constexpr int64_t kFetchBytes = 4 * kMiB;  // of a fetch: a drain, and the first layer's load, wait for it
constexpr int64_t kWishDivisor = 4;        // at least this part of own and of leased memory is asked for
constexpr absl::Duration kStorePatience = absl::Seconds(1);  // with a donor behind whose stores all others wait
constexpr int kIdleLooks = 16;                               // at leases, while one that nobody uses is kept
// Of leases that go back because nobody uses them: the loop forgets the blocks of each, and somebody may wait for it.
constexpr int kGivenBackAtOnce = 16;
constexpr absl::Duration kBetweenGiveBacks = absl::Seconds(1);
// What donors took in this time they may take again before a wish is granted, which takes a part of it.
constexpr absl::Duration kTakenOfLate = absl::Seconds(1);
// All leases are looked at in this time, one after the other (of more than 66: 66 a second), and not more often: what
// peers may say is bounded.
constexpr absl::Duration kHeatRound = absl::Seconds(1);
constexpr absl::Duration kBetweenHeatLooks = absl::Milliseconds(15);
constexpr int kHeatDivisor = 8;  // a donor hears of heat that differs by this part

}  // namespace

backend::DeviceAddress Borrowing::Address(kv::Place place) const {
  if (place.local()) return parts_.own->At(place.index);
  return regions_.at(place.region).view.base + place.index * parts_.own->block_bytes();
}

LeasedRegion* Borrowing::Find(kv::LeaseId lease) {
  const auto it = region_of_.find(lease);
  return it == region_of_.end() ? nullptr : &regions_.at(it->second);
}

void Borrowing::Do(const UseMessage& message) {
  if (!parts_.coordinator->step_reads().Accept(message.id)) return parts_.coordinator->Dropped(message.id);
  const kv::RegionId region = parts_.cache->AddRegion(message.num_blocks, message.donor);
  region_of_[message.id] = region;
  const absl::Time now = parts_.clock->Now();
  regions_.emplace(
      region,
      LeasedRegion{
          .lease = message.id, .region = region, .donor = message.donor, .view = message.view, .last_use = now});
  next_idle_look_ = std::min(next_idle_look_, now + keep_idle_ / kIdleLooks);
  heat_looks_left_ = static_cast<int64_t>(regions_.size());
  lendable_blocks_ = std::max<int64_t>(0, lendable_blocks_ - message.num_blocks);  // it was offered
  UpdatePotential();
}

void Borrowing::Do(const LendableMessage& message) {
  lendable_blocks_ = message.bytes / parts_.own->block_bytes();
  shortage_ = message.shortage;
  if (message.bytes == 0) {  // nor is anything on its way
    for (const kv::RegionId departing : departing_) regions_.at(departing).departure.NoRoom();
  }
  UpdatePotential();
}

int64_t Borrowing::streamed_blocks() const {
  if (options_.streams_all) return parts_.cache->leased_in().total;
  int64_t blocks = 0;
  for (const auto& [id, region] : regions_) {
    if (Streams(region.view)) blocks += parts_.cache->region(id).total;
  }
  return blocks;
}

// Each block more on lease takes some of the own memory for the slots through which it is streamed; of what may come, where
// links are measured, it is not known whether it will.
void Borrowing::UpdatePotential() {
  int64_t leased = parts_.cache->leased_in().total + lendable_blocks_;
  if (!leases_are_mapped())
    leased = std::min(leased, kv::StreamedBlocks(StreamBlocks(leased), options_.streamed_layers));
  const auto reserved = static_cast<int64_t>(parts_.cache->reserved().size());
  const int64_t streamed = options_.streams_all ? leased : streamed_blocks();
  const int64_t more_reserved = std::max<int64_t>(0, StreamBlocks(streamed) - reserved);
  parts_.cache->SetPotentialRegionBlocks(std::max<int64_t>(0, leased - more_reserved), lendable_blocks_);
}

int64_t Borrowing::StreamBlocks(int64_t leased_blocks) const {
  if (options_.streamed_layers == 0) return 0;
  return kv::StreamBlocksFor(options_.num_blocks, leased_blocks, options_.streamed_layers);
}

// --- copies

void Borrowing::StartMoves() {
  const int64_t stores = std::max<int64_t>(0, kMaxStores - static_cast<int64_t>(stores_.size()));
  Start(parts_.cache->TakeMoves(stores, std::max<int64_t>(1, kFetchBytes / parts_.own->block_bytes())));
}

// What comes home is read by the next step there, by this one where it was: the copy and the step do not disturb each
// other, since neither place is written.
void Borrowing::Start(const std::vector<Move>& moves) {
  const int64_t bytes = parts_.own->block_bytes();
  std::vector<transport::LoadPiece> loads;
  std::vector<transport::StorePiece> stores;
  std::vector<Move> home, away;
  for (const Move& move : moves) {
    CHECK(move.kind == kv::RegionKind::kLease) << "block " << move.id << " moves by other means than a transport";
    if (move.to.local()) {
      loads.push_back({regions_.at(move.from.region).lease, move.from.index * bytes, bytes, Address(move.to)});
      home.push_back(move);
    } else {
      stores.push_back({regions_.at(move.to.region).lease, move.to.index * bytes, Address(move.from), bytes});
      away.push_back(move);
    }
  }
  const backend::Fence& after = parts_.own->last_change();
  if (!loads.empty()) fetches_.push_back({parts_.transport->Load(std::move(loads), after), std::move(home)});
  if (stores.empty()) return;
  const std::vector<transport::Ticket> tickets = parts_.transport->Store(stores, after);
  for (size_t i = 0; i < away.size(); ++i) stores_.emplace(tickets[i], Store{away[i], parts_.clock->Now()});
}

void Borrowing::FinishFetches() {
  std::vector<kv::LeaseId> lost_of_any;
  for (const Fetch& fetch : std::exchange(fetches_, {})) {
    const std::vector<kv::LeaseId> lost = parts_.transport->Await(fetch.load);
    lost_of_any.insert(lost_of_any.end(), lost.begin(), lost.end());
    for (const Move& move : fetch.moves) {
      if (std::find(lost.begin(), lost.end(), regions_.at(move.from.region).lease) == lost.end()) {
        parts_.cache->FinishMove(move);
      } else {
        parts_.cache->AbortMove(move);
      }
    }
  }
  NoteLost(lost_of_any);  // or they would be asked again
}

void Borrowing::Do(const StoredMessage& message) {
  const auto it = stores_.find(message.ticket);
  if (it == stores_.end()) return;
  const Move move = it->second.move;
  stores_.erase(it);
  LeasedRegion& to = regions_.at(move.to.region);
  if (message.status.ok()) RestartStoreTimeouts(to.donor);
  const bool good = message.status.ok() && (move.from.local() || regions_.at(move.from.region).view.Holds());
  if (good) {
    parts_.cache->FinishMove(move);
    return;
  }
  parts_.cache->AbortMove(move);
  // The donor refuses: whatever becomes of the lease, nothing more goes there.
  if (!message.status.ok() && (to.departure.in_use() || to.departure.waiting())) {
    parts_.cache->RegionDraining(to.region);
    parts_.coordinator->StoreFailed(to.lease, message.status);
  }
}

void Borrowing::RestartStoreTimeouts(const std::string& donor) {
  const absl::Time now = parts_.clock->Now();
  for (auto& [ticket, store] : stores_) {
    if (regions_.at(store.move.to.region).donor == donor) store.waits_since = now;
  }
}

bool Borrowing::LeaveSilentDonors() {
  const absl::Time now = parts_.clock->Now();
  bool left = false;
  for (auto& [ticket, store] : stores_) {
    if (now - store.waits_since < kStorePatience) continue;
    store.waits_since = absl::InfiniteFuture();  // said once
    parts_.coordinator->DonorSilent(regions_.at(store.move.to.region).lease);
    left = true;
  }
  return left;
}

// --- wishes

void Borrowing::Advance(int64_t waiting_tokens) {
  (void)LeaveSilentDonors();
  GiveBackIdle();
  TellHeat();
  if (!saves_blocks()) StartMoves();
  AskForMemory(waiting_tokens);
}

absl::Time Borrowing::NextWakeup() const {
  absl::Time next = heat_looks_left_ > 0 ? std::min(next_idle_look_, next_heat_look_) : next_idle_look_;
  for (const auto& [ticket, store] : stores_) next = std::min(next, store.waits_since + kStorePatience);
  for (const kv::RegionId departing : departing_) {
    const LeasedRegion& region = regions_.at(departing);
    next = std::min(next, region.departure.leaves_at());
    if (IsSaving(region)) next = std::min(next, region.departure.save_until());
    if (SavesIdle(region)) next = std::min(next, region.departure.save_idle_until());
    if (IsEmptying(region) && MayStore()) next = parts_.clock->Now();
  }
  return next;
}

void Borrowing::SetKeepIdle(absl::Duration keep) {
  keep_idle_ = std::max(keep, kLeastIdle);
  if (!regions_.empty()) next_idle_look_ = parts_.clock->Now();
}

// What lies there was of no use for longer than a pausing donor keeps what its prompts found worth keeping.
void Borrowing::GiveBackIdle() {
  const absl::Time now = parts_.clock->Now();
  if (now < next_idle_look_) return;
  next_idle_look_ = regions_.empty() ? absl::InfiniteFuture() : now + keep_idle_ / kIdleLooks;
  int given = 0;
  for (auto& [id, region] : regions_) {
    if (!region.departure.in_use() || region.departure.given_back()) continue;
    if (parts_.cache->TakeUse(id)) region.last_use = now;
    if (now - region.last_use < keep_idle_) continue;
    if (given++ == kGivenBackAtOnce) {
      next_idle_look_ = now + kBetweenGiveBacks;
      return;
    }
    region.departure.GiveBack();
    parts_.coordinator->GiveBack(region.lease);
  }
}

// A donor in need takes the coldest lease back first. To look at a lease is to look at each place there: leases have
// their turns, also those that came while a step ran.
void Borrowing::TellHeat() {
  const absl::Time now = parts_.clock->Now();
  const auto leases = static_cast<int64_t>(regions_.size());
  heat_looks_left_ = parts_.scheduler->running().empty() ? std::min(heat_looks_left_, leases) : leases;
  next_heat_look_ = std::max(next_heat_look_, now - kHeatRound);
  for (; heat_looks_left_ > 0 && next_heat_look_ <= now; --heat_looks_left_) {
    next_heat_look_ += std::max(kHeatRound / leases, kBetweenHeatLooks);
    TellHeatOfNext();
  }
}

void Borrowing::TellHeatOfNext() {
  auto next = regions_.upper_bound(heat_looked_at_);
  if (next == regions_.end()) next = regions_.begin();
  auto& [id, region] = *next;
  heat_looked_at_ = id;
  if (!region.departure.in_use()) return;
  const int64_t heat = parts_.cache->Heat(id), told = region.told_heat;
  if (told >= 0 && std::abs(heat - told) <= std::max(heat, told) / kHeatDivisor) return;
  region.told_heat = heat;
  parts_.coordinator->NoteHeat(region.lease, heat);
}

void Borrowing::NoteTaken(int64_t blocks) {
  const absl::Time now = parts_.clock->Now();
  if (now - taken_since_ >= kTakenOfLate) {
    taken_before_ = now - taken_since_ < 2 * kTakenOfLate ? taken_blocks_ : 0;
    taken_blocks_ = 0;
    taken_since_ = now;
  }
  taken_blocks_ += blocks;
}

int64_t Borrowing::taken_of_late() const {
  return parts_.clock->Now() - taken_since_ < 2 * kTakenOfLate ? std::max(taken_blocks_, taken_before_) : 0;
}

void Borrowing::AskForMemory(int64_t waiting_tokens) {
  int64_t blocks = std::max(parts_.cache->TakeLeaseWish(taken_of_late()), homeless_blocks_);
  if (blocks == 0) return;
  // Who needs a little will need more: leases grow by steps, so that they stay few.
  blocks = std::max({blocks, options_.num_blocks / kWishDivisor, parts_.cache->leased_in().total / kWishDivisor});
  parts_.coordinator->WishForMemory(blocks * parts_.own->block_bytes(), waiting_tokens);
}

}  // namespace swiftcache::engine::exec
