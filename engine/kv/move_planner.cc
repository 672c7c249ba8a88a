// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/move_planner.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::kv {
namespace {

// A look at all blocks serves at least this share of the arena's, so that spilling costs little a block.
constexpr int64_t kColdShare = 16;

}  // namespace

std::vector<Move> MovePlanner::Spill(int64_t count) {
  std::vector<Move> moves;
  while (static_cast<int64_t>(moves.size()) < count) {
    const std::optional<RegionId> region = pool_.RegionWithRoom();
    if (!region) break;
    const std::optional<BlockId> coldest = NextCold();
    if (!coldest) break;
    moves.push_back(*pool_.BeginMove(*coldest, *region));
  }
  return moves;
}

// Whatever was used since it was listed is not cold any more: the time of its last use changed.
std::optional<BlockId> MovePlanner::NextCold() {
  const auto spillable = [this](BlockId id) { return pool_.spillable(id); };
  if (pool_.num_spillable() == 0) return std::nullopt;
  for (;;) {
    while (!cold_.empty()) {
      const auto [id, last_use] = cold_.back();
      cold_.pop_back();
      if (tree_.Contains(id) && tree_.last_use(id) == last_use && spillable(id)) return id;
    }
    cold_ = tree_.ColdestFirst(pool_.local().total / kColdShare + 1, spillable);
    CHECK(!cold_.empty()) << pool_.num_spillable() << " blocks may be spilled, none is in the prefix tree";
    std::reverse(cold_.begin(), cold_.end());
  }
}

std::vector<Move> MovePlanner::Promote(int64_t count) {
  std::vector<Move> moves;
  const auto remote_in_use = [this](BlockId id) {
    const Place at = pool_.place(id);
    return !at.local() && !pool_.moving(id) && !pool_.draining(at.region) && pool_.sequence_holds(id) > 0;
  };
  for (BlockId id : tree_.HottestFirst(remote_in_use)) {
    if (static_cast<int64_t>(moves.size()) == count || pool_.local().free == 0) break;
    moves.push_back(*pool_.BeginMove(id, kLocalRegion));
  }
  return moves;
}

std::vector<Move> MovePlanner::Drain(RegionId region, int64_t count, int64_t keep_free) {
  CHECK(pool_.draining(region));
  std::vector<Move> moves;
  const auto leaves = [&](BlockId id) { return pool_.place(id).region == region && !pool_.moving(id); };
  for (BlockId id : tree_.HottestFirst(leaves)) {
    if (static_cast<int64_t>(moves.size()) == count) break;
    // An eviction for one before it may have taken it.
    if (!tree_.Contains(id) || !leaves(id)) continue;
    if (!Leave(id, region, keep_free, moves)) break;
  }
  return moves;
}

// False: nowhere to go, nor for those that are colder. Idle blocks evict others only where that can give them room.
bool MovePlanner::Leave(BlockId id, RegionId leaving, int64_t keep_free, std::vector<Move>& moves) {
  const bool in_use = pool_.sequence_holds(id) > 0;
  const uint64_t before = in_use ? UINT64_MAX : tree_.last_use(id);
  const bool may_evict = in_use || pool_.HasRefuge(leaving);
  std::optional<RegionId> to = RoomFor(id, leaving, keep_free);
  for (; !to; to = RoomFor(id, leaving, keep_free)) {
    if (!may_evict || !tree_.EvictOne(before)) return false;
    ++evicted_;
  }
  moves.push_back(*pool_.BeginMove(id, *to));
  return true;
}

std::optional<RegionId> MovePlanner::RoomFor(BlockId id, RegionId leaving, int64_t keep_free) const {
  const bool in_use = pool_.sequence_holds(id) > 0;
  const bool local = pool_.local().free > (in_use ? 0 : keep_free);
  const std::optional<RegionId> other = pool_.RegionWithRoom(leaving);
  if (local && (in_use || !other)) return kLocalRegion;
  return other;
}

std::optional<std::vector<Move>> MovePlanner::Clear(int32_t first, int32_t count, int64_t max_moves) {
  const auto& occupants = pool_.occupants(kLocalRegion);
  std::vector<BlockId> idle, held;
  int64_t taken = 0;
  for (int32_t i = first; i < first + count; ++i) {
    if (!occupants[i]) continue;
    ++taken;
    if (pool_.moving(*occupants[i])) return std::nullopt;
    (pool_.sequence_holds(*occupants[i]) > 0 ? held : idle).push_back(*occupants[i]);
  }
  const int64_t free = pool_.num_free_below(first + count) - pool_.num_free_below(first);
  const auto num_held = static_cast<int64_t>(held.size());
  if (free + taken < count || num_held > max_moves || MakeRoomBelow(first, num_held) < num_held) return std::nullopt;
  for (BlockId id : idle) {
    if (tree_.Contains(id)) evicted_ += tree_.Drop(id);
  }
  std::vector<Move> moves;
  for (BlockId id : held) moves.push_back(*pool_.BeginMove(id, kLocalRegion));  // the lowest place: below the run
  return moves;
}

// Returns the free places below `first`: `count` or more, or as many as there were, where that cannot be had.
int64_t MovePlanner::MakeRoomBelow(int32_t first, int64_t count) {
  const auto idle_below = [&](BlockId id) {
    const Place at = pool_.place(id);
    return at.local() && at.index < first && !pool_.moving(id) && pool_.sequence_holds(id) == 0;
  };
  const int64_t free = pool_.num_free_below(first);
  if (free >= count) return free;
  const std::vector<PrefixTree::Cold> cold = tree_.ColdestFirst(count - free, idle_below);
  if (free + static_cast<int64_t>(cold.size()) < count) return free;
  for (const auto& [id, last_use] : cold) {
    if (tree_.Contains(id)) evicted_ += tree_.Drop(id);
  }
  return count;
}

}  // namespace swiftcache::engine::kv
