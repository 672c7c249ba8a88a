// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/borrowing.h"

#include <algorithm>
#include <utility>

#include "common/base/units.h"
#include "common/log/log.h"
#include "engine/kv/layer_stream.h"

namespace swiftcache::engine::exec {

using coordinator::DrainMessage;
using coordinator::LendableMessage;
using coordinator::LoseMessage;
using coordinator::StoredMessage;
using coordinator::UseMessage;
using kv::Move;

namespace {

constexpr int64_t kStoresAtOnce = 64;      // under way: enough to keep the transport busy
constexpr int64_t kFetchBytes = 4 * kMiB;  // of a fetch: a drain, and the first layer's load, wait for it
constexpr int kDrainDivisor = 2;           // copies of a drain may take this part of the time left
constexpr absl::Duration kStep = absl::Milliseconds(100);  // blocks that must be saved sooner are not read until then
constexpr int64_t kWishDivisor = 4;  // at least this part of own and of leased memory is asked for
constexpr int64_t kDrainBatch = 8;   // moves planned before the clock is read again, and
constexpr int64_t kDrainBatchBytes = kMiB;
constexpr absl::Duration kStorePatience = absl::Seconds(1);  // with a donor behind whose stores all others wait
constexpr int kIdleDivisor = 100;  // and those of blocks that nobody runs on this part, for all drains of a need
constexpr int kIdleLooks = 16;     // at leases, while one that nobody uses is kept
// Of leases that go back because nobody uses them: the loop forgets the blocks of each, and somebody may wait for it.
constexpr int kGivenBackAtOnce = 16;
constexpr absl::Duration kBetweenGiveBacks = absl::Seconds(1);
constexpr absl::Duration kBetweenDrains = absl::Milliseconds(50);  // drains closer than this are of one need

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
  lendable_blocks_ = std::max<int64_t>(0, lendable_blocks_ - message.num_blocks);  // it was offered
  UpdatePotential();
}

void Borrowing::Do(const LendableMessage& message) {
  lendable_blocks_ = message.bytes / parts_.own->block_bytes();
  shortage_ = message.shortage;
  UpdatePotential();
}

// Each block more on lease takes some of the own memory for the slots through which it is streamed.
void Borrowing::UpdatePotential() {
  int64_t leased = parts_.cache->leased_in().total + lendable_blocks_;
  if (!leases_are_mapped())
    leased = std::min(leased, kv::StreamedBlocks(StreamBlocks(leased), options_.streamed_layers));
  const auto reserved = static_cast<int64_t>(parts_.cache->reserved().size());
  const int64_t more_reserved = std::max<int64_t>(0, StreamBlocks(leased) - reserved);
  parts_.cache->SetPotentialRegionBlocks(std::max<int64_t>(0, leased - more_reserved), lendable_blocks_);
}

int64_t Borrowing::StreamBlocks(int64_t leased_blocks) const {
  if (options_.streamed_layers == 0) return 0;
  return kv::StreamBlocksFor(options_.num_blocks, leased_blocks, options_.streamed_layers);
}

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
  if (region->phase != LeasedRegion::Phase::kInUse) return;
  const absl::Time now = parts_.clock->Now();
  region->phase = LeasedRegion::Phase::kDraining;
  region->save_until = now + (message.until - now) / kDrainDivisor;
  // A donor in need revokes many leases at once, and waits for the last of them.
  if (!region->given_back && now - idle_moves_until_ > kBetweenDrains) {
    idle_moves_until_ = now + (message.until - now) / kIdleDivisor;
  }
  ending_.insert(region->region);
  parts_.cache->RegionDraining(region->region);
  GoOnDraining(*region);
}

void Borrowing::Drain(LeasedRegion& region) {
  // What goes back unasked is cold.
  const absl::Time idle_until =
      region.given_back ? absl::InfinitePast() : std::min(region.save_until, idle_moves_until_);
  const int64_t batch = std::clamp<int64_t>(kDrainBatchBytes / parts_.own->block_bytes(), 1, kDrainBatch);
  while (region.view.Holds()) {
    const bool in_use = parts_.cache->region(region.region).used > 0;
    if (parts_.clock->Now() >= (in_use ? region.save_until : idle_until)) return;
    const std::vector<Move> moves = parts_.cache->PlanDrain(region.region, batch);
    if (moves.empty()) return;
    Start(moves);
    FinishFetches();
    if (region.phase == LeasedRegion::Phase::kLost) return;
  }
}

// Stores to other leases end later; their blocks are in use here until then. Where nothing is on its way any more, or the
// time is up, what is left is not saved.
void Borrowing::GoOnDraining(LeasedRegion& region) {
  Drain(region);
  if (region.phase == LeasedRegion::Phase::kDraining && !IsSaving(region)) ResetReaders(region);
}

bool Borrowing::IsSaving(const LeasedRegion& region) const {
  return region.phase == LeasedRegion::Phase::kDraining && parts_.cache->region(region.region).used > 0 &&
         parts_.cache->num_moves_of(region.region) > 0 && parts_.clock->Now() < region.save_until;
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

void Borrowing::ResetReaders(const LeasedRegion& region) {
  std::vector<sched::Sequence*> readers;
  const kv::Tiers::Readers reads = parts_.cache->ReadersOf(region.region);
  for (sched::Sequence* sequence : parts_.scheduler->running()) {
    if (reads.Has(sequence->blocks)) readers.push_back(sequence);
  }
  for (sched::Sequence* sequence : readers) parts_.scheduler->Reset(sequence);
}

void Borrowing::FinishRegions() {
  for (const kv::RegionId ending : ending_) {
    LeasedRegion& region = regions_.at(ending);
    if (region.phase == LeasedRegion::Phase::kDraining && parts_.cache->region(ending).used > 0) GoOnDraining(region);
  }
  for (auto it = ending_.begin(); it != ending_.end();) {
    const LeasedRegion region = regions_.at(*it);
    if (parts_.cache->num_moves_of(region.region) > 0 || parts_.cache->region(region.region).used > 0) {
      ++it;
      continue;
    }
    if (region.given_back) lendable_blocks_ += parts_.cache->region(region.region).total;  // as far as is known
    const int64_t dropped = parts_.cache->DropRegion(region.region);
    LOG(INFO) << "lease " << region.lease << " is out of use with " << dropped << " blocks";
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

// --- copies

void Borrowing::StartMoves() {
  const int64_t stores = std::max<int64_t>(0, kStoresAtOnce - static_cast<int64_t>(stores_.size()));
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
  if (!message.status.ok() && to.phase == LeasedRegion::Phase::kInUse) {
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
  StartMoves();
  AskForMemory(waiting_tokens);
}

absl::Time Borrowing::NextWakeup() const {
  absl::Time next = next_idle_look_;
  for (const auto& [ticket, store] : stores_) next = std::min(next, store.waits_since + kStorePatience);
  for (const kv::RegionId region : ending_) {
    if (IsSaving(regions_.at(region))) next = std::min(next, regions_.at(region).save_until);
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
    if (region.phase != LeasedRegion::Phase::kInUse || region.given_back) continue;
    if (parts_.cache->TakeUse(id)) region.last_use = now;
    if (now - region.last_use < keep_idle_) continue;
    if (given++ == kGivenBackAtOnce) {
      next_idle_look_ = now + kBetweenGiveBacks;
      return;
    }
    region.given_back = true;
    parts_.coordinator->GiveBack(region.lease);
  }
}

void Borrowing::AskForMemory(int64_t waiting_tokens) {
  int64_t blocks = parts_.cache->TakeLeaseWish();
  if (blocks == 0) return;
  // Who needs a little will need more: leases grow by steps, so that they stay few.
  blocks = std::max({blocks, options_.num_blocks / kWishDivisor, parts_.cache->leased_in().total / kWishDivisor});
  parts_.coordinator->WishForMemory(blocks * parts_.own->block_bytes(), waiting_tokens);
}

}  // namespace swiftcache::engine::exec
