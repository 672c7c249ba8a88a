// SPDX-License-Identifier: Apache-2.0
// The layer stream cache (LSC): how large it is (SwiftCache 3.2, eq. 1-5) and which of its slots holds what.
//
//   LayerStreamSizes sizes = SizeLayerStream(/*local_slices=*/100, {9, 8}, /*num_layers=*/10);   // 17 slots, 8 blocks
//   LayerSlots slots(cache.reserved(), num_layers);
//   slots.Clear();                                           // a step begins
//   std::optional<int64_t> stream = slots.Assign(block);     // the same for every sequence that shares the block
//   LayerSlots::Slot to = slots.At(*stream, layer);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/kv/block.h"

namespace swiftcache::engine::kv {

/// Eq. 1, M_block: bytes of one layer's part of a block, K and V.
int64_t SliceBytes(int64_t block_tokens, int64_t kv_heads, int64_t head_dim, int64_t element_bytes);
/// Eq. 2, K_i: full-layer blocks that `worker_bytes` of another's memory hold.
int64_t FullLayerBlocks(int64_t worker_bytes, int64_t slice_bytes, int64_t num_layers);
/// Eq. 3, K_master: single-layer blocks that the own memory holds.
int64_t SingleLayerBlocks(int64_t master_bytes, int64_t slice_bytes);

/// Thread-safety: a value. Units: as named.
struct LayerStreamSizes {
  int64_t lsc_slots = 0;  // N_LSC, single-layer blocks
  int64_t rc_blocks = 0;  // N_RC, full-layer blocks
  /// The longest sequence, in blocks.
  int64_t max_blocks() const { return lsc_slots + rc_blocks; }
};
/// Eq. 4 and 5: `local_slices` is K_master, `worker_blocks` are the K_i.
LayerStreamSizes SizeLayerStream(int64_t local_slices, std::span<const int64_t> worker_blocks, int64_t num_layers);

/// The paper has one slot a streamed block. Ours has two, so that a layer's slices arrive while the one before it is
/// still read.
inline constexpr int64_t kStreamBuffers = 2;

/// Local blocks to reserve so that `leased_blocks` blocks can be streamed at once.
int64_t StreamBlocksFor(int64_t leased_blocks, int64_t num_layers);
/// How many leased blocks are of use where `local_blocks - keep_blocks` can be reserved. REQUIRES: num_layers > 0.
int64_t MaxStreamedBlocks(int64_t local_blocks, int64_t keep_blocks, int64_t num_layers);

/// The single-layer slots inside reserved local blocks: a block of num_layers slices is as many slots. Buffer b holds
/// the layers with layer % kStreamBuffers == b.
/// Thread-safety: none. Ownership: a value. Errors: none. Units: slots.
class LayerSlots {
 public:
  /// `places` are indices of reserved blocks in the own arena.
  LayerSlots(std::span<const int32_t> places, int64_t num_layers);

  /// Blocks that can be streamed at once.
  int64_t capacity() const { return static_cast<int64_t>(places_.size()) * num_layers_ / kStreamBuffers; }
  int64_t size() const { return static_cast<int64_t>(streams_.size()); }

  /// Forgets all blocks. REQUIRES: no slot is read or written any more.
  void Clear() { streams_.clear(); }
  /// The number of the block's stream, from 0 in the order of first calls. Nothing: the slots are used up.
  std::optional<int64_t> Assign(BlockId block);

  /// Slice `slice` of local block `place`.
  struct Slot {
    int32_t place = 0;
    int64_t slice = 0;
    friend bool operator==(const Slot&, const Slot&) = default;
  };
  /// Where layer `layer` of a stream lies. REQUIRES: 0 <= stream < capacity(), 0 <= layer < num_layers.
  Slot At(int64_t stream, int64_t layer) const;

 private:
  const std::vector<int32_t> places_;
  const int64_t num_layers_;
  absl::flat_hash_map<BlockId, int64_t> streams_;
};

}  // namespace swiftcache::engine::kv
