// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/sharing.h"

#include <algorithm>
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

constexpr int64_t kStoresAtOnce = 64;             // under way: enough to keep the transport busy
constexpr int64_t kFetchBytes = 4 * kMiB;         // of a fetch: a drain, and the first layer's load, wait for it
constexpr int64_t kMovesToClear = 64;             // own blocks that a loan may push aside
constexpr double kClearBytesPerNanosecond = 0.2;  // of a long step: some 5 % of it, where memory is slow
constexpr int kDrainDivisor = 2;                  // copies of a drain may take this part of the time left
constexpr int64_t kWishDivisor = 4;               // at least this part of own and of leased memory is asked for
constexpr int64_t kDrainBatch = 8;                // moves planned before the clock is read again, and
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

backend::DeviceAddress Sharing::Address(kv::Place place) const {
  const backend::DeviceAddress base = place.local() ? parts_.memory->base() : regions_.at(place.region).view.base;
  return base + place.index * options_.block_bytes;
}

LeasedRegion* Sharing::Find(kv::LeaseId lease) {
  const auto it = std::find_if(regions_.begin(), regions_.end(), [&](auto& r) { return r.second.lease == lease; });
  return it == regions_.end() ? nullptr : &it->second;
}

// --- as a donor

void Sharing::Do(const ClearMessage& message) { clears_.push_back(message); }

void Sharing::Do(const StopClearingMessage& message) {
  const auto is_it = [&](const auto& clear) { return clear.id == message.id; };
  if (std::erase_if(clears_, is_it) > 0) return parts_.coordinator->Cleared(message.id, false);
  const auto begun = std::find_if(clearing_.begin(), clearing_.end(), is_it);
  if (begun == clearing_.end()) return;
  StopClearing(*begun);
  clearing_.erase(begun);
}

// Some bytes a round, whatever is to be lent, so that this engine's own tokens do not wait for all of it; more where
// rounds are long, so that offers do not lapse meanwhile.
void Sharing::ClearSome() {
  if (need_) (void)StopAllClearing();
  const absl::Time now = parts_.clock->Now();
  const double earned = absl::ToDoubleNanoseconds(std::max(absl::ZeroDuration(), now - clears_wait_since_));
  int64_t bytes = std::max(
      {options_.clear_bytes_at_once, options_.block_bytes, static_cast<int64_t>(earned * kClearBytesPerNanosecond)});
  while (bytes > 0 && (ZeroSome(bytes) || BeginClearing(bytes))) {
  }
  FinishClears();
  clears_wait_since_ = clears_.empty() && clearing_.empty() ? absl::InfiniteFuture() : now;
}

// Another tenant's bytes leave the memory before it is lent; what comes back is scrubbed when it is next used.
// False: nothing is left to zero.
bool Sharing::ZeroSome(int64_t& bytes) {
  const auto next =
      std::find_if(clearing_.begin(), clearing_.end(), [](const Clearing& c) { return c.left.bytes > 0; });
  if (next == clearing_.end()) return false;
  const backend::ByteRange now{next->left.begin, std::min(bytes, next->left.bytes)};
  next->left = {now.begin + now.bytes, next->left.bytes - now.bytes};
  next->done = last_change_ = parts_.memory->Zero({&now, 1});
  bytes -= now.bytes;
  return true;
}

// Own blocks leave the run, and it is taken out of use. False: nothing is left to begin with.
bool Sharing::BeginClearing(int64_t& bytes) {
  if (clears_.empty()) return false;
  const ClearMessage clear = clears_.front();
  clears_.pop_front();
  const auto first = static_cast<int32_t>(clear.extent.first_block);
  const auto count = static_cast<int32_t>(clear.extent.num_blocks);
  const int64_t most_moves = std::clamp<int64_t>(bytes / options_.block_bytes, 1, kMovesToClear);
  const std::optional<std::vector<Move>> moves = parts_.cache->ClearForLending(first, count, most_moves);
  if (!moves) {
    bytes -= options_.block_bytes;  // for the attempt
    parts_.coordinator->Cleared(clear.id, false);
    return true;
  }
  std::vector<backend::ByteMove> copies;
  for (const Move& move : *moves) copies.push_back({Address(move.from), Address(move.to), options_.block_bytes});
  if (!copies.empty()) last_change_ = parts_.memory->Copy(copies);
  bytes -= static_cast<int64_t>(copies.size()) * options_.block_bytes;
  for (const Move& move : *moves) parts_.cache->FinishMove(move);
  if (!parts_.cache->Lend(first, count)) {
    parts_.coordinator->Cleared(clear.id, false);
    return true;
  }
  const int64_t to_zero = options_.scrub_on_return ? count * options_.block_bytes : 0;
  clearing_.push_back({clear.id, clear.extent, {Address({.index = first}), to_zero}, last_change_});
  return true;
}

// A grant must not come before the device has done what was asked of it.
void Sharing::FinishClears() {
  for (; !clearing_.empty() && clearing_.front().cleared(); clearing_.pop_front()) {
    parts_.coordinator->Cleared(clearing_.front().id, true);
  }
}

void Sharing::AwaitClears() {
  if (!clearing_.empty()) clearing_.front().done.Wait();
  FinishClears();
}

void Sharing::StopClearing(const Clearing& clearing) {
  parts_.cache->TakeBack(static_cast<int32_t>(clearing.extent.first_block),
                         static_cast<int32_t>(clearing.extent.num_blocks));
  parts_.coordinator->Cleared(clearing.id, false);
}

// Own tokens need the memory. Returns the blocks that are free again.
int64_t Sharing::StopAllClearing() {
  const int64_t free = parts_.cache->local().free;
  for (const ClearMessage& clear : std::exchange(clears_, {})) parts_.coordinator->Cleared(clear.id, false);
  for (const Clearing& clearing : std::exchange(clearing_, {})) StopClearing(clearing);
  asks_again_ |= parts_.cache->local().free > free;
  return parts_.cache->local().free - free;
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
  asks_again_ = false;
  int64_t blocks = parts_.cache->TakeReclaimWish();
  if (blocks > 0 && !(clears_.empty() && clearing_.empty())) blocks -= StopAllClearing();
  if (blocks <= 0) return need_.reset();
  if (!need_) need_ = {.since = parts_.clock->Now()};
  need_->free_blocks = parts_.cache->local().free + blocks;
  parts_.coordinator->NeedBack(blocks, parts_.cache->num_leased_out());
}

bool Sharing::ShouldDefer(const sched::StepPlan& plan) const {
  if (parts_.clock->Now() >= PatienceEnds()) return false;
  return std::none_of(plan.chunks.begin(), plan.chunks.end(), [](const sched::Chunk& chunk) { return chunk.samples; });
}

absl::Time Sharing::NextDuty() const {
  if (asks_again_ || !clears_.empty() || !clearing_.empty()) return absl::InfinitePast();
  absl::Time next = window_.NextNews();
  if (parts_.clock->Now() < PatienceEnds()) next = std::min(next, PatienceEnds());
  for (const auto& [ticket, store] : stores_) next = std::min(next, store.waits_since + kStorePatience);
  return next;
}

void Sharing::Scrub() {
  const std::vector<int32_t> dirty = parts_.cache->TakeDirty();
  if (!options_.scrub_on_return || dirty.empty()) return;
  std::vector<backend::ByteRange> ranges;
  for (const int32_t place : dirty) ranges.push_back({Address({.index = place}), options_.block_bytes});
  last_change_ = parts_.memory->Zero(ranges);
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
  lendable_blocks_ = message.bytes / options_.block_bytes;
  shortage_ = message.shortage;
  UpdatePotential();
}

// Each block more on lease takes some of the own memory for the slots through which it is streamed.
void Sharing::UpdatePotential() {
  int64_t leased = parts_.cache->leased_in().total + lendable_blocks_;
  if (!leases_are_mapped())
    leased = std::min(leased, kv::StreamedBlocks(StreamBlocks(leased), options_.streamed_layers));
  const auto reserved = static_cast<int64_t>(parts_.cache->reserved().size());
  const int64_t more_reserved = std::max<int64_t>(0, StreamBlocks(leased) - reserved);
  parts_.cache->SetPotentialRegionBlocks(std::max<int64_t>(0, leased - more_reserved), lendable_blocks_);
}

int64_t Sharing::StreamBlocks(int64_t leased_blocks) const {
  if (options_.streamed_layers == 0) return 0;
  return kv::StreamBlocksFor(options_.num_blocks, leased_blocks, options_.streamed_layers);
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
  const int64_t batch = std::clamp<int64_t>(kDrainBatchBytes / options_.block_bytes, 1, kDrainBatch);
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
  const kv::KvCache::Readers reads = parts_.cache->ReadersOf(region.region);
  for (sched::Sequence* sequence : parts_.scheduler->running()) {
    if (reads.Has(sequence->blocks)) readers.push_back(sequence);
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
  Start(parts_.cache->TakeMoves(stores, std::max<int64_t>(1, kFetchBytes / options_.block_bytes)));
}

// What comes home is read by the next step there, by this one where it was: the copy and the step do not disturb each
// other, since neither place is written.
void Sharing::Start(const std::vector<Move>& moves) {
  const int64_t bytes = options_.block_bytes;
  std::vector<transport::LoadPiece> loads;
  std::vector<transport::StorePiece> stores;
  std::vector<Move> home, away;
  for (const Move& move : moves) {
    if (move.to.local()) {
      loads.push_back({regions_.at(move.from.region).lease, move.from.index * bytes, bytes, Address(move.to)});
      home.push_back(move);
    } else {
      stores.push_back({regions_.at(move.to.region).lease, move.to.index * bytes, Address(move.from), bytes});
      away.push_back(move);
    }
  }
  if (!loads.empty()) fetch_ = Fetch{parts_.transport->Load(std::move(loads)), std::move(home)};
  if (stores.empty()) return;
  const std::vector<transport::Ticket> tickets = parts_.transport->Store(stores, last_change_);
  for (size_t i = 0; i < away.size(); ++i) stores_.emplace(tickets[i], Store{away[i], parts_.clock->Now()});
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
  if (!parts_.scheduler->has_work()) {  // cancelled
    need_.reset();
    asks_again_ = false;
  }
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
  blocks = std::max({blocks, options_.num_blocks / kWishDivisor, parts_.cache->leased_in().total / kWishDivisor});
  parts_.coordinator->WantMemory(blocks * options_.block_bytes, waiting_tokens);
}

}  // namespace swiftcache::engine::exec
