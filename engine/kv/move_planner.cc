// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/move_planner.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {

std::vector<Move> MovePlanner::Spill(int64_t count) {
  std::vector<Move> moves;
  while (static_cast<int64_t>(moves.size()) < count && pool_.num_spillable() > 0) {
    const std::optional<RegionId> region = pool_.RegionWithRoom();
    if (!region) break;
    const ByUse& from = pool_.spillable_idle().empty() ? pool_.spillable_used() : pool_.spillable_idle();
    Begin(from.begin()->second, *region, moves);
  }
  return moves;
}

std::vector<Move> MovePlanner::Promote(int64_t count) {
  const ByUse& promotable = pool_.promotable();
  std::vector<BlockId> hottest;
  for (auto use = promotable.rbegin(); use != promotable.rend() && static_cast<int64_t>(hottest.size()) < count;
       ++use) {
    hottest.push_back(use->second);
  }
  hottest = tree_.LeadingFirst(hottest, static_cast<int64_t>(promotable.size()),
                               [this](BlockId id) { return pool_.IsPromotable(id); });
  std::vector<Move> moves;
  for (BlockId id : hottest) {
    if (static_cast<int64_t>(moves.size()) == count || pool_.local().free == 0) break;
    Begin(id, kLocalRegion, moves);
  }
  return moves;
}

std::vector<Move> MovePlanner::Drain(RegionId region, int64_t count, int64_t keep_free) {
  CHECK(pool_.draining(region));
  if (pool_.counts(region).used > ranked_.used) ranked_.blocks.clear();  // as it empties it may be attached to
  evict_from_ = 0;
  std::vector<Move> moves;
  uint64_t no_room_before = 0;  // idle blocks last used then or earlier have nowhere to go
  bool fresh = false;
  while (static_cast<int64_t>(moves.size()) < count) {
    if (ranked_.region != region || ranked_.blocks.empty()) {
      if (fresh) break;
      RankForDrain(region);
      fresh = true;
      continue;
    }
    const BlockId id = ranked_.blocks.back();
    // An eviction for one before it may have taken it.
    const bool leaves = tree_.Contains(id) && pool_.place(id).region == region && !pool_.moving(id);
    if (leaves && pool_.last_use(id) > no_room_before && !Leave(id, region, keep_free, moves)) {
      if (pool_.sequence_holds(id) > 0) break;
      no_room_before = pool_.last_use(id);
    }
    ranked_.blocks.pop_back();
  }
  ranked_.used = pool_.counts(region).used;
  return moves;
}

// Whatever leads to a block in use is in use, so putting that first keeps those in use before the idle ones.
void MovePlanner::RankForDrain(RegionId region) {
  const auto leaves = [&](BlockId id) {
    return pool_.place(id).region == region && !pool_.moving(id) && tree_.Contains(id);
  };
  std::vector<BlockId> blocks;
  for (const std::optional<BlockId>& occupant : pool_.occupants(region)) {
    if (occupant && leaves(*occupant)) blocks.push_back(*occupant);
  }
  const auto worth = [this](BlockId id) {
    return std::tuple(pool_.sequence_holds(id) > 0, pool_.is_asked_for(id), pool_.last_use(id));
  };
  std::sort(blocks.begin(), blocks.end(), [&](BlockId a, BlockId b) { return worth(a) > worth(b); });
  ranked_.region = region;
  ranked_.blocks = tree_.LeadingFirst(blocks, static_cast<int64_t>(blocks.size()), leaves);
  std::reverse(ranked_.blocks.begin(), ranked_.blocks.end());
}

// False: nowhere to go, nor for what was used before it.
bool MovePlanner::Leave(BlockId id, RegionId leaving, int64_t keep_free, std::vector<Move>& moves) {
  std::optional<RegionId> to = RoomFor(id, leaving, keep_free);
  for (; !to; to = RoomFor(id, leaving, keep_free)) {
    if (!(pool_.sequence_holds(id) > 0 ? EvictForUsed(leaving) : EvictForIdle(id, leaving))) return false;
  }
  Begin(id, *to, moves);
  return true;
}

// A leaf that gives room, however much is colder that gives none: what lies in leases of the same lender, say.
bool MovePlanner::EvictForUsed(RegionId leaving) {
  const bool has_refuge = between_leases_ && pool_.HasRefuge(leaving);
  const auto gives_room = [&](BlockId id) {
    const RegionId at = pool_.place(id).region;
    return at == kLocalRegion || (has_refuge && pool_.IsRefuge(at, leaving));
  };
  if (tree_.EvictOneOf(gives_room, evict_from_)) return true;
  std::optional<BlockId> idle;
  if (!pool_.spillable_idle().empty()) {
    idle = pool_.spillable_idle().begin()->second;
  } else if (has_refuge) {  // what is idle there leads to others
    idle = pool_.IdleInRefuge(leaving);
  }
  return idle && tree_.Lose(*idle) > 0;
}

// Only where that can give room to what is idle.
bool MovePlanner::EvictForIdle(BlockId id, RegionId leaving) {
  return between_leases_ && pool_.HasRefuge(leaving) && tree_.EvictOne(pool_.last_use(id));
}

std::optional<RegionId> MovePlanner::RoomFor(BlockId id, RegionId leaving, int64_t keep_free) const {
  const bool in_use = pool_.sequence_holds(id) > 0;
  const bool local = pool_.local().free > (in_use ? 0 : keep_free);
  const std::optional<RegionId> other = between_leases_ ? pool_.RegionWithRoom(leaving) : std::nullopt;
  if (local && (in_use || !other)) return kLocalRegion;
  return other;
}

std::optional<std::vector<Move>> MovePlanner::Clear(int32_t first, int32_t count, int64_t max_moves, int64_t keep) {
  const auto& occupants = pool_.occupants(kLocalRegion);
  const uint64_t hot_since = LastUseOfHottest(keep);
  std::vector<BlockId> cold, hot, held;
  int64_t taken = 0;
  for (int32_t i = first; i < first + count; ++i) {
    if (!occupants[i]) continue;
    const BlockId id = *occupants[i];
    ++taken;
    if (pool_.moving(id)) return std::nullopt;
    (pool_.sequence_holds(id) > 0 ? held : pool_.last_use(id) >= hot_since ? hot : cold).push_back(id);
  }
  if (pool_.CountFree(first, first + count, count) + taken < count) return std::nullopt;
  const auto idle_here = [&](BlockId id) {
    const Place place = pool_.place(id);
    return place.local() && place.index >= first && place.index < first + count && pool_.sequence_holds(id) == 0;
  };
  hot = tree_.LeadingFirst(hot, count, idle_here);
  const int64_t num_moves = std::min(max_moves, static_cast<int64_t>(held.size() + hot.size()));
  if (MakeRoomBelow(first, num_moves) < num_moves) return std::nullopt;
  const absl::flat_hash_set<BlockId> stay(hot.begin(), hot.end());
  for (BlockId id : cold) {
    if (!stay.contains(id) && tree_.Contains(id)) tree_.Lose(id);
  }
  held.insert(held.end(), hot.begin(), hot.end());
  std::vector<Move> moves;
  for (BlockId id : held) {
    if (static_cast<int64_t>(moves.size()) == num_moves) break;
    if (pool_.sequence_holds(id) > 0 || tree_.Contains(id)) Begin(id, kLocalRegion, moves);  // lowest place: below
  }
  return moves;
}

// Idle local blocks that were used then or later are, with those in use, the `keep` used last. It is looked for from the
// nearer end, so that half the idle are passed at most, and few where most or little is worth keeping.
uint64_t MovePlanner::LastUseOfHottest(int64_t keep) const {
  const ByUse& idle = pool_.spillable_idle();
  const auto size = static_cast<int64_t>(idle.size());
  const int64_t colder = std::max<int64_t>(0, pool_.local().used + pool_.local().cached - keep);
  if (colder >= size) return UINT64_MAX;
  const bool few_colder = colder <= size / 2;
  return (few_colder ? std::next(idle.begin(), colder) : std::prev(idle.end(), size - colder))->first;
}

// REQUIRES: there is room.
void MovePlanner::Begin(BlockId id, RegionId to, std::vector<Move>& moves) {
  moves.push_back(*pool_.BeginMove(id, to));
  tree_.NoteMove(id);
}

// Returns `count`, or how many places below `first` are free where so many cannot be had.
int64_t MovePlanner::MakeRoomBelow(int32_t first, int64_t count) {
  const int64_t free = pool_.CountFree(0, first, count);
  if (free == count) return free;
  std::vector<BlockId> cold;
  for (const auto& [last_use, id] : pool_.spillable_idle()) {
    if (free + static_cast<int64_t>(cold.size()) == count) break;
    if (pool_.place(id).index < first) cold.push_back(id);
  }
  if (free + static_cast<int64_t>(cold.size()) < count) return free;
  for (BlockId id : cold) {
    if (tree_.Contains(id)) tree_.Lose(id);
  }
  return count;
}

}  // namespace swiftcache::engine::kv
