// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  id_ = other.id_;
  holder_ = other.holder_;
  return *this;
}

BlockRef BlockRef::Share(Holder holder) const {
  CHECK(pool_ != nullptr);
  pool_->Hold(id_, holder);
  return BlockRef(pool_, id_, holder);
}

bool BlockRef::idle() const { return pool_ != nullptr && pool_->blocks_[id_.value()].idle(); }

bool BlockRef::GiveWayTo(const BlockRef& other) {
  if (!pool_->place(other.id_).local() && pool_->place(id_).local()) {
    if (pool_->moving(id_) || pool_->moving(other.id_)) return false;
    pool_->SwapPlaces(id_, other.id_);
  }
  pool_->moved_.Note(other.id_);
  *this = other.Share(holder_);
  return true;
}

void BlockRef::NoteUse(uint64_t time) const {
  pool_->Unlist(id_);
  pool_->blocks_[id_.value()].last_use = time;
  pool_->List(id_);
}

bool BlockRef::NoteFound() const {
  CHECK(holder_ != Holder::kCache) << "while a sequence holds it, it counts nowhere";
  return !std::exchange(pool_->blocks_[id_.value()].found, true);
}

void BlockRef::NoteExpected() const {
  CHECK(holder_ != Holder::kCache) << "while a sequence holds it, it counts nowhere";
  pool_->blocks_[id_.value()].expected = true;
}

void BlockRef::NoteAwaited(bool awaited) const {
  CHECK(holder_ != Holder::kCache) << "while a sequence holds it, it counts nowhere";
  pool_->blocks_[id_.value()].awaited = awaited;
}

void BlockRef::Reset() {
  if (BlockPool* pool = std::exchange(pool_, nullptr)) pool->Drop(id_, holder_);
}

PlaceCounts& PlaceCounts::operator+=(const PlaceCounts& other) {
  total += other.total;
  free += other.free;
  used += other.used;
  cached += other.cached;
  return *this;
}

BlockPool::BlockPool(int64_t num_local_blocks) : local_(num_local_blocks), written_(num_local_blocks) { GrowIds(); }

// Every block in use takes a place or more, so there are never more of them than places. Low ids go out first.
void BlockPool::GrowIds() {
  const size_t places = local_.occupants.size() + leased_sum_.total;
  const size_t known = blocks_.size();
  if (places <= known) return;
  blocks_.resize(places);
  for (size_t id = known; id < places; ++id) free_ids_.push_front(static_cast<int32_t>(id));
}

std::optional<std::vector<BlockRef>> BlockPool::Allocate(int64_t count, std::optional<BlockId> after, Holder holder) {
  if (count > local_.free.size()) return std::nullopt;
  std::optional<int32_t> after_index;
  if (after && place(*after).local()) after_index = place(*after).index;
  std::vector<BlockRef> blocks;
  blocks.reserve(count);
  for (int32_t index : TakeLocal(count, after_index)) {
    const BlockId id(free_ids_.back());
    free_ids_.pop_back();
    Block& block = blocks_[id.value()];
    block.place = {kLocalRegion, index};
    block.filling = Filling(++last_filling_);
    block.found = block.expected = block.awaited = false;
    local_.occupants[index] = id;
    Hold(id, holder);
    blocks.push_back(BlockRef(this, id, holder));
    if (!dirty_.empty()) NoteDirty(index);
  }
  return blocks;
}

bool BlockPool::MayAttach(BlockId id, Holder holder) const {
  const Place at = place(id);
  return at.local() || (holder != Holder::kLocalSequence && region(at.region).attachable);
}

int32_t BlockPool::sequence_holds(BlockId id) const {
  return blocks_[id.value()].sequences + blocks_[id.value()].local_sequences;
}

void BlockPool::Hold(BlockId id, Holder holder) {
  Block& block = blocks_[id.value()];
  if (holder == Holder::kSequence && block.sequences > 0) {
    ++block.sequences;
    return;
  }
  Unlist(id);
  switch (holder) {
    case Holder::kSequence:
      ++block.sequences;
      break;
    case Holder::kLocalSequence:
      ++block.local_sequences;
      break;
    case Holder::kCache:
      CHECK(!block.cache) << "block " << id << " is in the cache already";
      block.cache = true;
  }
  List(id);
}

void BlockPool::Drop(BlockId id, Holder holder) {
  Block& block = blocks_[id.value()];
  CHECK(block.held());
  if (holder == Holder::kSequence && block.sequences > 1) {
    --block.sequences;
    return;
  }
  Unlist(id);
  switch (holder) {
    case Holder::kSequence:
      --block.sequences;
      break;
    case Holder::kLocalSequence:
      --block.local_sequences;
      break;
    case Holder::kCache:
      block.cache = false;
  }
  List(id);
  if (block.held() || block.to) return;
  Vacate(block.place);
  free_ids_.push_back(id.value());
}

// Around each change of a block: out of the counts and the order it is in, and into those that it belongs to then.
void BlockPool::Unlist(BlockId id) {
  const Block& block = blocks_[id.value()];
  if (!block.held()) return;
  Region& at = region(block.place.region);
  --(block.used() ? at.used : at.cached);
  at.asked_for -= block.asked_for_idle();
  at.touched |= block.used();
  if (!block.place.local()) CountLeased(at, {.used = -block.used(), .cached = -block.idle()});
  if (ByUse* order = OrderOf(block)) order->erase({block.last_use, id});
}

void BlockPool::List(BlockId id) {
  const Block& block = blocks_[id.value()];
  if (!block.held()) return;
  Region& at = region(block.place.region);
  ++(block.used() ? at.used : at.cached);
  at.asked_for += block.asked_for_idle();
  if (!block.place.local()) CountLeased(at, {.used = block.used(), .cached = block.idle()});
  if (ByUse* order = OrderOf(block)) order->insert({block.last_use, id});
}

const ByUse* BlockPool::OrderOf(const Block& block) const {
  if (!block.cache || block.to || block.local_sequences > 0) return nullptr;
  if (block.place.local()) return block.used() ? &spillable_used_ : &spillable_idle_;
  return block.used() && !region(block.place.region).draining ? &promotable_ : nullptr;
}

void BlockPool::CountLeased(const Region& region, const PlaceCounts& change) {
  leased_sum_ += change;
  if (!region.draining) live_sum_ += change;
}

void BlockPool::Occupy(Place place, BlockId id) { region(place.region).occupants[place.index] = id; }

void BlockPool::Vacate(Place place) {
  Region& at = region(place.region);
  at.occupants[place.index].reset();
  if (at.draining) {
    ++at.vacated;
  } else {
    at.free.Insert(place.index);
  }
  if (place.local()) {
    // Nobody has written to it yet: whoever has it next may bring bytes along, which a scrub would wipe.
    if (dirty_taken_.erase(place.index) > 0) dirty_.Unite(place.index, 1);
    return;
  }
  CountLeased(at, {.free = 1});
  if (!at.draining && at.free.size() == 1) rooms_.SetRoom(place.region, at.lender, true);
}

std::vector<int32_t> BlockPool::TakeLocal(int64_t count, std::optional<int32_t> after) {
  std::vector<int32_t> taken = local_.free.Take(count, after);
  for (const int32_t index : taken) written_[index] = true;
  return taken;
}

int32_t BlockPool::TakePlaceIn(RegionId id) {
  if (id == kLocalRegion) return TakeLocal(1, std::nullopt).front();
  Region& from = region(id);
  const int32_t index = from.free.Take(1, std::nullopt).front();
  CountLeased(from, {.free = -1});
  if (from.free.empty()) rooms_.SetRoom(id, from.lender, false);
  return index;
}

RegionId BlockPool::AddRegion(int64_t num_blocks, std::string lender) {
  const RegionId id(next_region_++);
  const Region& added =
      *leased_.emplace(id, std::make_unique<Region>(num_blocks, RoomIndex::LenderOf(id, std::move(lender))))
           .first->second;
  CountLeased(added, CountsOf(added));
  rooms_.Add(added.lender);
  rooms_.SetRoom(id, added.lender, !added.free.empty());
  GrowIds();
  return id;
}

void BlockPool::RemoveRegion(RegionId id) {
  const Region& gone = region(id);
  CHECK_EQ(gone.moves, 0) << "moves of region " << id << " are under way";
  CHECK_EQ(CountsOf(gone).free, CountsOf(gone).total) << "blocks lie in region " << id;
  CountLeased(gone, -CountsOf(gone));
  if (!gone.draining) rooms_.Remove(id, gone.lender);
  leased_.erase(id);
}

void BlockPool::SetDraining(RegionId id, bool attachable) {
  CHECK(id != kLocalRegion);
  Region& drained = region(id);
  drained.attachable = attachable;
  if (drained.draining) return;
  for (const std::optional<BlockId>& occupant : drained.occupants) {
    if (!occupant || place(*occupant).region != id) continue;
    const Block& block = blocks_[occupant->value()];
    if (ByUse* order = OrderOf(block)) order->erase({block.last_use, *occupant});
  }
  live_sum_ += -CountsOf(drained);
  num_outbound_moves_ -= drained.inbound;
  rooms_.Remove(id, drained.lender);
  drained.vacated = std::exchange(drained.free, {}).size();
  drained.draining = true;
}

std::optional<BlockId> BlockPool::IdleInRefuge(RegionId leaving) const {
  std::optional<BlockId> coldest;
  for (const auto& [id, leased] : leased_) {
    if (leased->cached == 0 || !IsRefuge(id, leaving)) continue;
    for (const std::optional<BlockId>& occupant : leased->occupants) {
      if (!occupant || place(*occupant).region != id || moving(*occupant)) continue;
      if (blocks_[occupant->value()].idle() && (!coldest || last_use(*occupant) < last_use(*coldest)))
        coldest = occupant;
    }
  }
  return coldest;
}

bool BlockPool::TakeUse(RegionId id) {
  Region& asked = region(id);
  return std::exchange(asked.touched, false) || asked.used > 0;
}

std::optional<Move> BlockPool::BeginMove(BlockId id, RegionId to) {
  const Region& target = region(to);
  if (target.draining || target.free.empty()) return std::nullopt;
  Block& block = blocks_[id.value()];
  CHECK(block.held() && !block.to) << "block " << id << " is free, or moves already";
  const Move move{id, block.place, {to, TakePlaceIn(to)}};
  Occupy(move.to, id);
  Unlist(id);
  block.to = move.to;
  List(id);
  CountMove(move, +1);
  return move;
}

void BlockPool::CountMove(const Move& move, int64_t sign) {
  num_moves_ += sign;
  region(move.from.region).moves += sign;
  region(move.from.region).outbound += sign;
  region(move.to.region).moves += sign;
  if (!move.from.local()) return;
  Region& to = region(move.to.region);
  to.inbound += sign;
  if (!move.to.local() && !to.draining) num_outbound_moves_ += sign;
}

bool BlockPool::FinishMove(const Move& move) {
  const Block& block = blocks_[move.id.value()];
  const bool stays = !move.to.local() && (region(move.to.region).draining || block.local_sequences > 0);
  return EndMove(move, !stays);
}

void BlockPool::AbortMove(const Move& move) { EndMove(move, false); }

bool BlockPool::EndMove(const Move& move, bool arrived) {
  Block& block = blocks_[move.id.value()];
  CHECK(block.place == move.from && block.to == move.to) << "block " << move.id << " is on no such move";
  CountMove(move, -1);
  // What came in part, from a lease that was lost meanwhile, may be anybody's.
  if (!arrived && move.to.local()) dirty_.Unite(move.to.index, 1);
  if (!block.held()) {
    Vacate(move.from);
    Vacate(move.to);
    block.to.reset();
    free_ids_.push_back(move.id.value());
    return false;
  }
  Unlist(move.id);
  block.to.reset();
  if (arrived) block.place = move.to;
  if (arrived && block.used()) moved_.Note(move.id);
  List(move.id);
  if (arrived) region(move.to.region).touched = true;
  Vacate(arrived ? move.from : move.to);
  if (arrived && move.to.local() && dirty_.Covers(move.to.index, 1)) dirty_.Remove(move.to.index);
  return arrived;
}

void BlockPool::SwapPlaces(BlockId a, BlockId b) {
  Block &first = blocks_[a.value()], &second = blocks_[b.value()];
  CHECK(first.held() && second.held() && !first.to && !second.to);
  Unlist(a);
  Unlist(b);
  std::swap(first.place, second.place);
  for (const BlockId id : {a, b}) {
    List(id);
    Occupy(place(id), id);
    moved_.Note(id);
  }
}

bool BlockPool::Lend(PlaceRun run) {
  if (!local_.free.Covers(run.first, run.count)) return false;
  local_.free.Remove(run.first, run.count);
  lent_.Insert(run.first, run.count);
  return true;
}

void BlockPool::Unlend(PlaceRun run) {
  lent_.Remove(run.first, run.count);
  local_.free.Insert(run.first, run.count);
}

void BlockPool::Withhold(PlaceRun run) {
  CHECK(lent_.Covers(run.first, run.count))
      << "places " << run.first << " to " << run.first + run.count - 1 << " are not lent";
  withheld_.Insert(run.first, run.count);
}

// Some of the run may have been dirty when it was lent: that is one set of extents, and joining them is paid for by
// the allocations that had split them.
void BlockPool::TakeBack(PlaceRun run) {
  if (withheld_.Covers(run.first, run.count)) withheld_.Remove(run.first, run.count);
  Unlend(run);
  dirty_.Unite(run.first, run.count);
  std::fill_n(written_.begin() + run.first, run.count, true);
}

std::vector<PlaceRun> BlockPool::WrittenIn(PlaceRun run) const {
  std::vector<PlaceRun> runs;
  const auto begin = written_.begin() + run.first, end = begin + run.count;
  for (auto from = std::find(begin, end, true); from != end;) {
    const auto to = std::find(from, end, false);
    runs.push_back({static_cast<int32_t>(from - written_.begin()), static_cast<int32_t>(to - from)});
    from = std::find(to, end, true);
  }
  return runs;
}

void BlockPool::NoteZeroed(PlaceRun run) {
  CHECK(lent_.Covers(run.first, run.count))
      << "who wrote to places " << run.first << " to " << run.first + run.count - 1 << " is not known";
  std::fill_n(written_.begin() + run.first, run.count, false);
}

void BlockPool::NoteDirty(int32_t index) {
  if (!dirty_.Covers(index, 1)) return;
  dirty_.Remove(index);
  dirty_taken_.insert(index);
}

std::vector<int32_t> BlockPool::TakeDirty() {
  const auto taken = std::exchange(dirty_taken_, {});
  return {taken.begin(), taken.end()};
}

std::vector<int32_t> BlockPool::Reserve(int64_t count) {
  num_reserved_ += count;
  return TakeLocal(count, std::nullopt);
}

void BlockPool::Unreserve(int32_t index) {
  CHECK_GT(num_reserved_, 0);
  --num_reserved_;
  local_.free.Insert(index);
  dirty_.Unite(index, 1);
}

PlaceCounts BlockPool::CountsOf(const Region& region) {
  return {static_cast<int64_t>(region.occupants.size()), region.free.size() + region.vacated, region.used,
          region.cached};
}

}  // namespace swiftcache::engine::kv
