// SPDX-License-Identifier: Apache-2.0
// The free blocks of an arena as runs of adjacent blocks, split and merged as blocks come and go.
//
//   FreeExtents free(1000);
//   for (BlockId id : free.Take(8, std::nullopt)) ...   // 0..7
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/kv/block.h"

namespace swiftcache::engine::kv {

/// Blocks are taken from the head of the arena: its tail stays whole, which is where extents can be lent from.
/// Thread-safety: none. Ownership: a value. Errors: giving a free block back is a caller's bug and checked. Units:
/// blocks.
class FreeExtents {
 public:
  explicit FreeExtents(int64_t num_blocks);

  int64_t size() const { return size_; }

  /// Takes `count` blocks, first those right behind `after`, then the lowest run that holds the rest, then, where no
  /// run is long enough, the lowest blocks. REQUIRES: count <= size().
  std::vector<BlockId> Take(int64_t count, std::optional<BlockId> after);
  void Give(BlockId id);

  /// First block and length, ascending, never adjacent.
  const std::map<int32_t, int32_t>& extents() const { return extents_; }

 private:
  using Extents = std::map<int32_t, int32_t>;
  void TakeFrom(Extents::iterator extent, int64_t count, std::vector<BlockId>& taken);
  Extents::iterator FirstOfLength(int64_t count);

  Extents extents_;
  int64_t size_ = 0;
};

}  // namespace swiftcache::engine::kv
