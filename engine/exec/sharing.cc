// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/sharing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/units.h"
#include "common/log/log.h"
#include "engine/kv/layer_stream.h"

namespace swiftcache::engine::exec {

using coordinator::ClearMessage;
using coordinator::DrainMessage;
using coordinator::LendableMessage;
using coordinator::LoseMessage;
using coordinator::StopClearingMessage;
using coordinator::StoredMessage;
using coordinator::TakeBackMessage;
using coordinator::UseMessage;
using kv::Move;

namespace {

constexpr int64_t kStoresAtOnce = 64;      // under way: enough to keep the transport busy
constexpr int64_t kFetchBytes = 4 * kMiB;  // of a fetch: a drain, and the first layer's load, wait for it
constexpr int64_t kMovesToClear = 64;      // own blocks that a loan may push aside
constexpr int kDrainDivisor = 2;           // copies of a drain may take this part of the time left
constexpr int64_t kWishDivisor = 4;        // at least this part of own and of leased memory is asked for
constexpr int64_t kDrainBatch = 8;         // moves planned before the clock is read again, and
constexpr int64_t kDrainBatchBytes = kMiB;
constexpr absl::Duration kStorePatience = absl::Seconds(1);        // with a donor behind whose stores all others wait
constexpr absl::Duration kBetweenDrains = absl::Milliseconds(50);  // drains closer than this are of one need

}  // namespace

Sharing::Sharing(const Options& options, const Parts& parts)
    : options_(options), parts_(parts), window_({.window = options.scale_down_window}) {}

void Sharing::Handle(const coordinator::LoopMessage& message) {
  FinishFetch();
  std::visit([this](const auto& m) { Do(m); }, message);
  FinishRegions();
}

std::byte* Sharing::Address(kv::Place place) const {
  if (place.local()) return parts_.arena->Address(place.index);
  // Read-only memory: a block in a lease is full and committed, and is never written again.
  return const_cast<std::byte*>(regions_.at(place.region).view.base) + place.index * parts_.arena->block_bytes();
}

LeasedRegion* Sharing::Find(kv::LeaseId lease) {
  const auto it = std::find_if(regions_.begin(), regions_.end(), [&](auto& r) { return r.second.lease == lease; });
  return it == regions_.end() ? nullptr : &it->second;
}

// --- as a donor

void Sharing::Do(const ClearMessage& message) { clears_.push_back(message); }

void Sharing::Do(const StopClearingMessage& message) {
  const auto cleared = [&](const ClearMessage& waiting) { return waiting.id == message.id; };
  if (std::erase_if(clears_, cleared) > 0) parts_.coordinator->Cleared(message.id, false);
}

// A large loan is many extents: some of them a round, so that its donor's own tokens do not wait for all.
void Sharing::ClearSome() {
  int64_t bytes = options_.clear_bytes_at_once;
  while (!clears_.empty() && bytes > 0) {
    const ClearMessage next = clears_.front();
    clears_.pop_front();
    if (!need_) bytes -= next.extent.num_blocks * parts_.arena->block_bytes();
    parts_.coordinator->Cleared(next.id, !need_ && Clear(next.extent));
  }
}

// Another tenant's bytes leave the memory before it is lent; what comes back is scrubbed when it is next used.
bool Sharing::Clear(const lease::Extent& extent) {
  const auto first = static_cast<int32_t>(extent.first_block);
  const auto count = static_cast<int32_t>(extent.num_blocks);
  const std::optional<std::vector<Move>> moves = parts_.cache->ClearForLending(first, count, kMovesToClear);
  if (!moves) return false;
  for (const Move& move : *moves) {
    std::memcpy(Address(move.to), Address(move.from), parts_.arena->block_bytes());
    parts_.cache->FinishMove(move);
  }
  if (!parts_.cache->Lend(first, count)) return false;
  if (options_.scrub_on_return) std::memset(parts_.arena->Address(first), 0, count * parts_.arena->block_bytes());
  return true;
}

void Sharing::Do(const TakeBackMessage& message) {
  parts_.cache->TakeBack(static_cast<int32_t>(message.extent.first_block),
                         static_cast<int32_t>(message.extent.num_blocks));
  const int64_t free = parts_.cache->local().free;
  if (!need_ || (free < need_->free_blocks && parts_.cache->num_leased_out() > 0)) return;
  const absl::Duration waited = std::max(absl::ZeroDuration(), message.returned_at - need_->since);
  parts_.metrics->Reclaimed(waited);
  LOG(INFO) << "what was lent is back " << waited << " after it was needed: " << free << " blocks are free, "
            << need_->free_blocks << " were to be";
  need_.reset();
}

void Sharing::AskBack() {
  const int64_t blocks = parts_.cache->TakeReclaimWish();
  if (blocks == 0) return need_.reset();
  if (!need_) need_ = {.since = parts_.clock->Now()};
  need_->free_blocks = parts_.cache->local().free + blocks;
  parts_.coordinator->NeedBack(blocks, parts_.cache->num_leased_out());
}

bool Sharing::ShouldDefer(const sched::StepPlan& plan) const {
  if (parts_.clock->Now() >= PatienceEnds()) return false;
  return std::none_of(plan.chunks.begin(), plan.chunks.end(), [](const sched::Chunk& chunk) { return chunk.samples; });
}

absl::Time Sharing::NextDuty() const {
  if (!clears_.empty()) return absl::InfinitePast();
  absl::Time next = window_.NextNews();
  if (parts_.clock->Now() < PatienceEnds()) next = std::min(next, PatienceEnds());
  for (const auto& [ticket, store] : stores_) next = std::min(next, store.waits_since + kStorePatience);
  return next;
}

void Sharing::Scrub() {
  const std::vector<int32_t> dirty = parts_.cache->TakeDirty();
  if (!options_.scrub_on_return) return;
  for (const int32_t place : dirty) std::memset(parts_.arena->Address(place), 0, parts_.arena->block_bytes());
}

// --- as a borrower

void Sharing::Do(const UseMessage& message) {
  const kv::RegionId region = parts_.cache->AddRegion(message.num_blocks, message.donor);
  regions_.emplace(region,
                   LeasedRegion{.lease = message.id, .region = region, .donor = message.donor, .view = message.view});
  lendable_blocks_ = std::max<int64_t>(0, lendable_blocks_ - message.num_blocks);  // it was offered
  UpdatePotential();
}

void Sharing::Do(const LendableMessage& message) {
  lendable_blocks_ = message.bytes / parts_.arena->block_bytes();
  shortage_ = message.shortage;
  UpdatePotential();
}

// Each block more on lease takes some of the own memory for the slots through which it is streamed.
void Sharing::UpdatePotential() {
  const int64_t leased = parts_.cache->leased_in().total + lendable_blocks_;
  const auto reserved = static_cast<int64_t>(parts_.cache->reserved().size());
  const int64_t more_reserved = std::max<int64_t>(0, StreamBlocks(leased) - reserved);
  parts_.cache->SetPotentialRegionBlocks(std::max<int64_t>(0, leased - more_reserved), lendable_blocks_);
}

int64_t Sharing::StreamBlocks(int64_t leased_blocks) const {
  if (options_.streamed_layers == 0) return 0;
  return kv::StreamBlocksFor(parts_.arena->num_blocks(), leased_blocks, options_.streamed_layers);
}

// What its running sequences read goes where there is room, as far as the time suffices; then they are computed again
// without it.
void Sharing::Do(const DrainMessage& message) {
  LeasedRegion* region = Find(message.id);
  if (region == nullptr) {
    parts_.urgency->Forget(message.id);
    parts_.coordinator->Drained(message.id);
    return;
  }
  if (region->phase != LeasedRegion::Phase::kInUse) return;
  region->phase = LeasedRegion::Phase::kDraining;
  region->drain_until = message.until;
  parts_.cache->RegionDraining(region->region);
  Drain(*region);
  ResetReaders(*region);
}

void Sharing::Drain(LeasedRegion& region) {
  const absl::Time begin = parts_.clock->Now();
  const absl::Time used_deadline = begin + (region.drain_until - begin) / kDrainDivisor;
  // A donor in need revokes many leases at once, and waits for the last of them.
  if (begin - idle_moves_until_ > kBetweenDrains) idle_moves_until_ = begin + options_.idle_move_budget;
  const absl::Time idle_deadline = std::min(used_deadline, idle_moves_until_);
  const int64_t batch = std::clamp<int64_t>(kDrainBatchBytes / parts_.arena->block_bytes(), 1, kDrainBatch);
  while (region.view.Holds()) {
    const bool in_use = parts_.cache->region(region.region).used > 0;
    if (parts_.clock->Now() >= (in_use ? used_deadline : idle_deadline)) return;
    const std::vector<Move> moves = parts_.cache->PlanDrain(region.region, batch);
    if (moves.empty()) return;
    Start(moves);
    FinishFetch();
  }
}

void Sharing::Do(const LoseMessage& message) {
  LeasedRegion* region = Find(message.id);
  if (region == nullptr) {  // dropped already, when a step found it lost
    parts_.urgency->Forget(message.id);
    parts_.coordinator->Dropped(message.id);
    return;
  }
  region->phase = LeasedRegion::Phase::kLost;
  parts_.cache->RegionDraining(region->region);
  ResetReaders(*region);
}

void Sharing::NoteLost(const std::vector<kv::LeaseId>& leases) {
  for (const kv::LeaseId lease : leases) {
    Do(LoseMessage{lease});
    parts_.coordinator->GenerationChanged(lease);
  }
}

void Sharing::ResetReaders(const LeasedRegion& region) {
  std::vector<sched::Sequence*> readers;
  for (sched::Sequence* sequence : parts_.scheduler->running()) {
    if (parts_.cache->Touches(sequence->blocks, region.region)) readers.push_back(sequence);
  }
  for (sched::Sequence* sequence : readers) parts_.scheduler->Reset(sequence);
}

// A region goes when its last copy has ended, and the lease half hears that nothing reads it any more.
void Sharing::FinishRegions() {
  for (auto it = regions_.begin(); it != regions_.end();) {
    const LeasedRegion& region = it->second;
    if (region.phase == LeasedRegion::Phase::kInUse || parts_.cache->num_moves_of(region.region) > 0) {
      ++it;
      continue;
    }
    const int64_t dropped = parts_.cache->DropRegion(region.region);
    LOG(INFO) << "lease " << region.lease << " is out of use with " << dropped << " blocks";
    parts_.urgency->Forget(region.lease);
    if (region.phase == LeasedRegion::Phase::kLost) {
      parts_.coordinator->Dropped(region.lease);
    } else {
      parts_.coordinator->Drained(region.lease);
    }
    it = regions_.erase(it);
    UpdatePotential();
  }
}

// --- copies

void Sharing::StartMoves() {
  const int64_t stores = std::max<int64_t>(0, kStoresAtOnce - static_cast<int64_t>(stores_.size()));
  Start(parts_.cache->TakeMoves(stores, std::max<int64_t>(1, kFetchBytes / parts_.arena->block_bytes())));
}

// What comes home is read by the next step there, by this one where it was: the copy and the step do not disturb each
// other, since neither place is written.
void Sharing::Start(const std::vector<Move>& moves) {
  const int64_t bytes = parts_.arena->block_bytes();
  std::vector<transport::LoadPiece> pieces;
  std::vector<Move> home;
  for (const Move& move : moves) {
    if (move.to.local()) {
      pieces.push_back({regions_.at(move.from.region).lease, move.from.index * bytes, bytes, Address(move.to)});
      home.push_back(move);
    } else {
      const kv::LeaseId lease = regions_.at(move.to.region).lease;
      const transport::Ticket ticket = parts_.transport->Store(lease, move.to.index * bytes, Address(move.from), bytes);
      stores_.emplace(ticket, Store{move, parts_.clock->Now()});
    }
  }
  if (!pieces.empty()) fetch_ = Fetch{parts_.transport->Load(std::move(pieces)), std::move(home)};
}

void Sharing::FinishFetch() {
  if (!fetch_) return;
  const Fetch fetch = *std::exchange(fetch_, std::nullopt);
  const std::vector<kv::LeaseId> lost = parts_.transport->Await(fetch.load);
  for (const Move& move : fetch.moves) {
    if (std::find(lost.begin(), lost.end(), regions_.at(move.from.region).lease) == lost.end()) {
      parts_.cache->FinishMove(move);
    } else {
      parts_.cache->AbortMove(move);
    }
  }
}

void Sharing::Do(const StoredMessage& message) {
  const auto it = stores_.find(message.ticket);
  if (it == stores_.end()) return;
  const Move move = it->second.move;
  stores_.erase(it);
  LeasedRegion& to = regions_.at(move.to.region);
  if (message.status.ok()) NoteWordOf(to.donor);
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

void Sharing::NoteWordOf(const std::string& donor) {
  const absl::Time now = parts_.clock->Now();
  for (auto& [ticket, store] : stores_) {
    if (regions_.at(store.move.to.region).donor == donor) store.waits_since = now;
  }
}

void Sharing::LeaveSilentDonors() {
  const absl::Time now = parts_.clock->Now();
  for (auto& [ticket, store] : stores_) {
    if (now - store.waits_since < kStorePatience) continue;
    store.waits_since = absl::InfiniteFuture();  // said once
    parts_.coordinator->DonorSilent(regions_.at(store.move.to.region).lease);
  }
}

// --- wishes

void Sharing::Advance(int64_t waiting_tokens, int64_t longest_request_tokens) {
  FinishFetch();
  if (!parts_.scheduler->has_work()) need_.reset();  // cancelled
  Scrub();
  ClearSome();
  LeaveSilentDonors();
  StartMoves();
  AskForMemory(waiting_tokens);
  const absl::Time now = parts_.clock->Now();
  window_.Note(now, parts_.cache->local().used, parts_.cache->BlocksFor(waiting_tokens), longest_request_tokens);
  if (const auto window = window_.TakeNews(now)) parts_.coordinator->ReportWindow(*window);
}

void Sharing::AskForMemory(int64_t waiting_tokens) {
  int64_t blocks = parts_.cache->TakeLeaseWish();
  if (blocks == 0) return;
  // Who needs a little will need more: leases grow by steps, so that they stay few.
  blocks =
      std::max({blocks, parts_.arena->num_blocks() / kWishDivisor, parts_.cache->leased_in().total / kWishDivisor});
  parts_.coordinator->WantMemory(blocks * parts_.arena->block_bytes(), waiting_tokens);
}

}  // namespace swiftcache::engine::exec
