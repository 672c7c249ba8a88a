// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
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
  *this = other.Share(holder_);
  return true;
}

void BlockRef::Reset() {
  if (BlockPool* pool = std::exchange(pool_, nullptr)) pool->Drop(id_, holder_);
}

BlockPool::BlockPool(int64_t num_local_blocks) : local_(num_local_blocks) { GrowIds(); }

// Every block in use takes a place or more, so there are never more of them than places. Low ids go out first.
void BlockPool::GrowIds() {
  size_t places = local_.occupants.size();
  for (const auto& [id, region] : leased_) places += region.occupants.size();
  const size_t known = blocks_.size();
  if (places <= known) return;
  blocks_.resize(places);
  std::vector<int32_t> ids;
  for (size_t id = places; id > known; --id) ids.push_back(static_cast<int32_t>(id - 1));
  free_ids_.insert(free_ids_.begin(), ids.begin(), ids.end());
}

std::optional<std::vector<BlockRef>> BlockPool::Allocate(int64_t count, std::optional<BlockId> after, Holder holder) {
  if (count > local_.free.size()) return std::nullopt;
  std::optional<int32_t> after_index;
  if (after && place(*after).local()) after_index = place(*after).index;
  std::vector<BlockRef> blocks;
  blocks.reserve(count);
  for (int32_t index : local_.free.Take(count, after_index)) {
    const BlockId id(free_ids_.back());
    free_ids_.pop_back();
    blocks_[id.value()].place = {kLocalRegion, index};
    local_.occupants[index] = id;
    Hold(id, holder);
    blocks.push_back(BlockRef(this, id, holder));
    if (!dirty_.empty()) NoteDirty(index);
  }
  return blocks;
}

bool BlockPool::MayAttach(BlockId id, Holder holder) const {
  const Place at = place(id);
  return at.local() || (holder != Holder::kLocalSequence && !region(at.region).draining);
}

int32_t BlockPool::sequence_holds(BlockId id) const {
  return blocks_[id.value()].sequences + blocks_[id.value()].local_sequences;
}

void BlockPool::Hold(BlockId id, Holder holder) {
  Block& block = blocks_[id.value()];
  Count(block, -1);
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
  Count(block, +1);
}

void BlockPool::Drop(BlockId id, Holder holder) {
  Block& block = blocks_[id.value()];
  CHECK(block.held());
  Count(block, -1);
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
  Count(block, +1);
  if (block.held() || block.to) return;
  Vacate(block.place);
  free_ids_.push_back(id.value());
}

void BlockPool::Count(const Block& block, int64_t sign) {
  if (!block.held()) return;
  Region& at = region(block.place.region);
  (block.used() ? at.used : at.cached) += sign;
  if (IsSpillable(block)) num_spillable_ += sign;
}

void BlockPool::Occupy(Place place, BlockId id) { region(place.region).occupants[place.index] = id; }

void BlockPool::Vacate(Place place) {
  Region& at = region(place.region);
  at.occupants[place.index].reset();
  at.free.Insert(place.index);
}

RegionId BlockPool::AddRegion(int64_t num_blocks, std::string lender) {
  const RegionId id(next_region_++);
  leased_.emplace(id, Region(num_blocks, std::move(lender)));
  GrowIds();
  return id;
}

void BlockPool::RemoveRegion(RegionId id) {
  const Region& gone = region(id);
  CHECK_EQ(gone.moves, 0) << "moves of region " << id << " are under way";
  CHECK_EQ(gone.free.size(), static_cast<int64_t>(gone.occupants.size())) << "blocks lie in region " << id;
  leased_.erase(id);
}

void BlockPool::SetDraining(RegionId id) {
  CHECK(id != kLocalRegion);
  region(id).draining = true;
}

std::optional<RegionId> BlockPool::RegionWithRoom(std::optional<RegionId> leaving) const {
  const Region& from = leaving ? region(*leaving) : local_;
  for (const auto& [id, region] : leased_) {
    if (TakesIn(region, from) && !region.free.empty()) return id;
  }
  return std::nullopt;
}

bool BlockPool::HasRefuge(RegionId leaving) const {
  return std::any_of(leased_.begin(), leased_.end(),
                     [&](const auto& entry) { return TakesIn(entry.second, region(leaving)); });
}

std::optional<Move> BlockPool::BeginMove(BlockId id, RegionId to) {
  Region& target = region(to);
  if (target.draining || target.free.empty()) return std::nullopt;
  Block& block = blocks_[id.value()];
  CHECK(block.held() && !block.to) << "block " << id << " is free, or moves already";
  const Move move{id, block.place, {to, target.free.Take(1, std::nullopt).front()}};
  Occupy(move.to, id);
  Count(block, -1);
  block.to = move.to;
  Count(block, +1);
  CountMove(move, +1);
  return move;
}

void BlockPool::CountMove(const Move& move, int64_t sign) {
  num_moves_ += sign;
  region(move.from.region).moves += sign;
  region(move.to.region).moves += sign;
  if (move.from.local()) region(move.to.region).inbound += sign;
}

int64_t BlockPool::num_outbound_moves() const {
  int64_t outbound = 0;
  for (const auto& [id, region] : leased_) outbound += region.draining ? 0 : region.inbound;
  return outbound;
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
  Count(block, -1);
  block.to.reset();
  if (arrived) block.place = move.to;
  Count(block, +1);
  Vacate(arrived ? move.from : move.to);
  if (arrived && move.to.local() && dirty_.Covers(move.to.index, 1)) dirty_.Remove(move.to.index);
  return arrived;
}

void BlockPool::SwapPlaces(BlockId a, BlockId b) {
  Block &first = blocks_[a.value()], &second = blocks_[b.value()];
  CHECK(first.held() && second.held() && !first.to && !second.to);
  Count(first, -1);
  Count(second, -1);
  std::swap(first.place, second.place);
  Count(first, +1);
  Count(second, +1);
  Occupy(first.place, a);
  Occupy(second.place, b);
}

bool BlockPool::Lend(int32_t first, int32_t count) {
  if (!local_.free.Covers(first, count)) return false;
  local_.free.Remove(first, count);
  lent_.Insert(first, count);
  return true;
}

// Some of the run may have been dirty when it was lent: that is one set of extents, and joining them is paid for by
// the allocations that had split them.
void BlockPool::TakeBack(int32_t first, int32_t count) {
  lent_.Remove(first, count);
  local_.free.Insert(first, count);
  dirty_.Unite(first, count);
}

void BlockPool::NoteDirty(int32_t index) {
  if (!dirty_.Covers(index, 1)) return;
  dirty_.Remove(index);
  dirty_taken_.push_back(index);
}

std::vector<int32_t> BlockPool::TakeDirty() { return std::exchange(dirty_taken_, {}); }

std::vector<int32_t> BlockPool::Reserve(int64_t count) {
  num_reserved_ += count;
  return local_.free.Take(count, std::nullopt);
}

void BlockPool::Unreserve(int32_t index) {
  CHECK_GT(num_reserved_, 0);
  --num_reserved_;
  local_.free.Insert(index);
  dirty_.Unite(index, 1);
}

PlaceCounts BlockPool::CountsOf(const Region& region) {
  return {static_cast<int64_t>(region.occupants.size()), region.free.size(), region.used, region.cached};
}

PlaceCounts BlockPool::leased() const {
  PlaceCounts sum;
  for (const auto& [id, region] : leased_) {
    sum.total += static_cast<int64_t>(region.occupants.size());
    sum.free += region.free.size();
    sum.used += region.used;
    sum.cached += region.cached;
  }
  return sum;
}

PlaceCounts BlockPool::live() const {
  PlaceCounts sum = leased();
  for (const auto& [id, region] : leased_) {
    if (!region.draining) continue;
    sum.total -= static_cast<int64_t>(region.occupants.size());
    sum.free -= region.free.size();
    sum.used -= region.used;
    sum.cached -= region.cached;
  }
  return sum;
}

absl::Status BlockPool::CheckInvariants() const {
  RETURN_IF_ERROR(CheckBlocks());
  RETURN_IF_ERROR(CheckPlaces(kLocalRegion, local_));
  for (const auto& [id, region] : leased_) RETURN_IF_ERROR(CheckPlaces(id, region));
  return absl::OkStatus();
}

absl::Status BlockPool::CheckBlocks() const {
  std::vector<bool> listed(blocks_.size(), false);
  for (int32_t id : free_ids_) listed[id] = true;
  int64_t spillable = 0, moves = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const bool exists = block.held() || block.to;
    if (exists == listed[i]) {
      return absl::InternalError(absl::StrCat("block ", i, " has ", block.sequences + block.local_sequences,
                                              " holds by sequences and ", block.cache ? 1 : 0,
                                              " by the cache; in the free list: ", listed[i] ? 1 : 0));
    }
    spillable += IsSpillable(block);
    moves += block.to.has_value();
    for (const std::optional<Place>& end : {exists ? std::optional(block.place) : std::nullopt, block.to}) {
      if (end && region(end->region).occupants[end->index] != BlockId(static_cast<int32_t>(i))) {
        return absl::InternalError(
            absl::StrCat("block ", i, " is not on place ", end->index, " of region ", end->region.value()));
      }
    }
  }
  if (spillable == num_spillable_ && moves == num_moves_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("blocks that may be spilled: found ", spillable, ", counted ", num_spillable_,
                                          "; moves: found ", moves, ", counted ", num_moves_));
}

// Every place is one of: free, taken by a block or its move, and in the own arena lent or reserved.
absl::Status BlockPool::CheckPlaces(RegionId id, const Region& region) const {
  int64_t used = 0, cached = 0, taken = 0, moves = 0, inbound = 0;
  for (size_t i = 0; i < region.occupants.size(); ++i) {
    const std::optional<BlockId> occupant = region.occupants[i];
    const auto index = static_cast<int32_t>(i);
    const bool lent = id == kLocalRegion && lent_.Covers(index, 1);
    if (region.free.Covers(index, 1) + lent + occupant.has_value() > 1) {
      return absl::InternalError(absl::StrCat("place ", i, " of region ", id.value(), " has more than one owner"));
    }
    if (!occupant) continue;
    const Block& block = blocks_[occupant->value()];
    const Place place{id, index};
    if (block.place != place && block.to != place) {
      return absl::InternalError(absl::StrCat("place ", i, " of region ", id.value(), " names a block that left"));
    }
    ++taken;
    if (block.to) moves += (block.place.region == id) + (block.to->region == id && block.place.region != id);
    inbound += block.to == place && block.place.local();
    if (block.place == place) used += block.used(), cached += block.idle();
  }
  int64_t rest = static_cast<int64_t>(region.occupants.size()) - region.free.size() - taken;
  if (id == kLocalRegion) rest -= lent_.size() + num_reserved_;
  const bool moves_add_up = id == kLocalRegion || (moves == region.moves && inbound == region.inbound);
  if (rest == 0 && used == region.used && cached == region.cached && moves_add_up) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("region ", id.value(), ": ", rest, " places are nobody's; used: found ", used,
                                          ", counted ", region.used, "; cached: found ", cached, ", counted ",
                                          region.cached, "; moves: found ", moves, ", counted ", region.moves));
}

}  // namespace swiftcache::engine::kv
