// SPDX-License-Identifier: Apache-2.0
// The layer stream cache (LSC): how large it is and which of its slots holds what.
//
//   int64_t reserve = StreamBlocksFor(/*own_blocks=*/100, /*leased_blocks=*/17, /*num_layers=*/10);   // 4
//   LayerSlots slots(cache.reserved(), num_layers);
//   slots.Clear();                                           // a step begins
//   std::optional<int64_t> stream = slots.Assign(block);     // the same for every sequence that shares the block
//   LayerSlots::Slot to = slots.At(*stream, layer);
//
// The sizes of SwiftCache 3.2 and where each is computed:
//
//   | eq. | what                                                   | where                                         |
//   |-----|--------------------------------------------------------|-----------------------------------------------|
//   | 1   | M_block, bytes of a layer's part of a block            | backend::KvLayout::slice_bytes                |
//   | 2   | K_i, full-layer blocks that a lease's bytes hold       | the broker: borrower_blocks of a lease        |
//   | 3   | K_master, single-layer blocks of the own memory        | Arena::num_blocks, whole blocks, x num_layers |
//   | 4-5 | N_LSC and N_RC, what of them is slots and what remains | DivideSlices                                  |
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/kv/block.h"

namespace swiftcache::engine::kv {

/// Thread-safety: a value. Units: as named.
struct LayerStreamSizes {
  int64_t lsc_slots = 0;  // N_LSC, single-layer blocks
  int64_t rc_blocks = 0;  // N_RC, full-layer blocks
};
/// Eq. 4 and 5: `own_slices` is K_master, `leased_blocks` the sum of the K_i. The paper has one slot a leased block.
LayerStreamSizes DivideSlices(int64_t own_slices, int64_t leased_blocks, int64_t slots_per_block, int64_t num_layers);

/// Slots of ours a streamed block: a layer's slices arrive while the one before it is still read.
inline constexpr int64_t kStreamBuffers = 2;

/// Own blocks to reserve for slots so that `leased_blocks` blocks can be streamed at once: eq. 4 and 5 on one half of
/// the own memory, since the other is kept. REQUIRES: num_layers > 0.
int64_t StreamBlocksFor(int64_t own_blocks, int64_t leased_blocks, int64_t num_layers);
/// Leased blocks that can be streamed at once through the slots in so many own ones.
constexpr int64_t StreamedBlocks(int64_t reserved_blocks, int64_t num_layers) {
  return reserved_blocks * num_layers / kStreamBuffers;
}

/// The single-layer slots inside reserved local blocks: a block of num_layers slices is as many slots. Buffer b holds
/// the layers with layer % kStreamBuffers == b.
/// Thread-safety: none. Ownership: a value. Errors: none. Units: slots.
class LayerSlots {
 public:
  /// `places` are indices of reserved blocks in the own arena.
  LayerSlots(std::span<const int32_t> places, int64_t num_layers);

  /// Blocks that can be streamed at once.
  int64_t capacity() const { return StreamedBlocks(static_cast<int64_t>(places_.size()), num_layers_); }
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
