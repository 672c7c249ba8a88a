// SPDX-License-Identifier: Apache-2.0
// Chooses the blocks that change places: spilled to leases, promoted to the own arena, saved from a lease that ends,
// cleared from a run that is to be lent.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_tree.h"

namespace swiftcache::engine::kv {

/// What leads to a block is worth more than the block, since without it the block is worth nothing. A plan costs its
/// moves, and the paths that lead to what it moves.
///
/// The moves it returns have begun (BlockPool::BeginMove). Only blocks of the prefix tree move, whose bytes never
/// change again; Clear alone moves others too. A block that moves already is never chosen. Thread-safety: none.
/// Ownership: borrows pool and tree. Errors: none. Units: blocks.
class MovePlanner {
 public:
  /// `between_leases`: whether a block may move from one lease to another.
  MovePlanner(BlockPool* pool, PrefixTree* tree, bool between_leases)
      : pool_(*pool), tree_(*tree), between_leases_(between_leases) {}

  /// Up to `count` local blocks to leases, the coldest first, idle ones before those in use. Fewer only where no lease
  /// has room or no block may be spilled.
  std::vector<Move> Spill(int64_t count);
  /// Up to `count` blocks in use from leases to the own arena, the hottest first.
  std::vector<Move> Promote(int64_t count);
  /// Up to `count` blocks out of a region, most worthwhile first. Those in use go to the own arena, else to another
  /// lease, if it may; idle ones to another lease, else to the own arena while more than `keep_free` places are free
  /// there. Where nothing is free, blocks that were used less recently are evicted, if that can give room.
  /// REQUIRES: the region drains.
  std::vector<Move> Drain(RegionId region, int64_t count, int64_t keep_free);
  /// Empties a run of the own arena. Of all blocks that lie in the arena the `keep` used last stay there, and so do
  /// those that are held: they move below the run, at most `max_moves` in this call, and the coldest idle blocks there
  /// make way. The rest is dropped (PrefixTree::Lose). Nothing: a place of the run is lent or reserved, a
  /// block there is moving, or there is no room below; nothing was changed.
  std::optional<std::vector<Move>> Clear(int32_t first, int32_t count, int64_t max_moves, int64_t keep);

 private:
  void RankForDrain(RegionId region);
  std::optional<RegionId> RoomFor(BlockId id, RegionId leaving, int64_t keep_free) const;
  bool Leave(BlockId id, RegionId leaving, int64_t keep_free, std::vector<Move>& moves);
  bool EvictForUsed(RegionId leaving);
  bool EvictForIdle(BlockId id, RegionId leaving);
  uint64_t LastUseOfHottest(int64_t keep) const;
  int64_t MakeRoomBelow(int32_t first, int64_t count);
  void Begin(BlockId id, RegionId to, std::vector<Move>& moves);

  BlockPool& pool_;
  PrefixTree& tree_;
  const bool between_leases_;
  // What Drain takes next, the most worthwhile last: ranked for many of its batches, so entries may be out of date.
  // Anew where more blocks are in use there than when the last batch ended.
  struct {
    std::optional<RegionId> region;
    std::vector<BlockId> blocks;
    int64_t used = 0;
  } ranked_;
  uint64_t evict_from_ = 0;  // leaves used before then give no room to those in use that the batch at hand takes
};

}  // namespace swiftcache::engine::kv
