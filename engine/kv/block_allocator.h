// SPDX-License-Identifier: Apache-2.0
// Hands out blocks and counts who holds them.
//
//   auto blocks = allocator.Allocate(3, std::nullopt);    // nothing where fewer than 3 are free
//   BlockRef again = blocks->front().Share(Holder::kCache);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/block.h"
#include "engine/kv/free_extents.h"

namespace swiftcache::engine::kv {

class BlockAllocator;

/// One hold on a block; the block is free again when the last hold ends.
/// Thread-safety: none. Ownership: move-only; must not outlive its allocator. Errors: none.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept { *this = std::move(other); }
  BlockRef& operator=(BlockRef&& other) noexcept;
  ~BlockRef() { Reset(); }

  BlockId id() const { return id_; }
  /// REQUIRES: holds a block. A block has at most one hold by the cache.
  BlockRef Share(Holder holder) const;
  /// True where only the cache holds the block.
  bool idle() const;

 private:
  friend class BlockAllocator;
  BlockRef(BlockAllocator* allocator, BlockId id, Holder holder) : allocator_(allocator), id_(id), holder_(holder) {}
  void Reset();

  BlockAllocator* allocator_ = nullptr;
  BlockId id_;
  Holder holder_ = Holder::kSequence;
};

/// Every block is free, used (held by a sequence, perhaps by the cache too) or cached (held by the cache alone).
/// Thread-safety: none. Ownership: owns the counts, not the bytes. Errors: wrong use is checked. Units: blocks.
class BlockAllocator {
 public:
  explicit BlockAllocator(int64_t num_blocks);
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  /// All or nothing; placed behind `after` where possible, else as low and as adjacent as possible.
  std::optional<std::vector<BlockRef>> Allocate(int64_t count, std::optional<BlockId> after);

  int64_t num_blocks() const { return static_cast<int64_t>(holds_.size()); }
  int64_t num_free() const { return free_.size(); }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_used() const { return num_blocks() - num_free() - num_cached(); }
  int32_t sequence_holds(BlockId id) const { return holds_[id.value()].sequences; }
  bool cache_holds(BlockId id) const { return holds_[id.value()].cache; }

  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  friend class BlockRef;
  struct Holds {
    int32_t sequences = 0;
    bool cache = false;
    bool idle() const { return cache && sequences == 0; }
    bool free() const { return !cache && sequences == 0; }
  };
  void Hold(BlockId id, Holder holder);
  void Drop(BlockId id, Holder holder);

  std::vector<Holds> holds_;
  FreeExtents free_;
  int64_t num_cached_ = 0;
};

}  // namespace swiftcache::engine::kv
