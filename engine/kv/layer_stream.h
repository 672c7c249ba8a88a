// SPDX-License-Identifier: Apache-2.0
// The layer stream cache (LSC): how large it is and which of its slots holds what.
//
//   int64_t reserve = StreamBlocksFor(/*own_blocks=*/100, /*leased_blocks=*/17, /*num_layers=*/10);   // 4
//   LayerSlots slots(cache.reserved(), num_layers);
//   slots.Begin();                                           // a step begins
//   auto stream = slots.Assign(filling);                     // the same for every sequence that shares the block
//   LayerSlots::Slot to = slots.At(stream->number, layer);
//   slots.KeepFirst(stream->number);                         // the step is over, and layer 0 came again behind the last
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

/// The single-layer slots inside reserved local blocks: a block of num_layers slices is as many slots. A block's layers
/// take its two by turns.
///
/// The turn goes on from step to step: behind the last layer, while the other slot is read, layer 0 may come once more,
/// for the next step. There it is found for the same filling of the block, until another one takes the slots; those that
/// the step before did not use are taken first.
/// Thread-safety: none. Ownership: a value. Errors: none. Units: slots.
class LayerSlots {
 public:
  /// `places` are indices of reserved blocks in the own arena.
  LayerSlots(std::span<const int32_t> places, int64_t num_layers);

  /// Blocks that can be streamed at once.
  int64_t capacity() const { return StreamedBlocks(static_cast<int64_t>(places_.size()), num_layers_); }

  /// A step begins, in which no block has a stream yet. REQUIRES: no slot is read or written any more.
  void Begin();
  struct Stream {
    int64_t number = 0;
    bool is_new = false;          // this is the step's first call for the block
    bool first_is_there = false;  // its layer 0 lies at At(number, 0)
  };
  /// Nothing: the slots are used up.
  std::optional<Stream> Assign(Filling filling);
  /// The step has used the stream's slots, and layer 0 came again to where layer num_layers would lie. REQUIRES: the
  /// stream was assigned since Begin; once.
  void KeepFirst(int64_t stream);
  /// The step has used the stream's slots; layer 0 is not there.
  void ForgetFirst(int64_t stream) { streams_[stream].first_is_there = false; }

  /// Slice `slice` of local block `place`.
  struct Slot {
    int32_t place = 0;
    int64_t slice = 0;
    friend bool operator==(const Slot&, const Slot&) = default;
  };
  /// Where layer `layer` of a stream lies. REQUIRES: it is assigned, layer >= 0.
  Slot At(int64_t stream, int64_t layer) const;

 private:
  struct OfBlock {
    Filling filling;
    int64_t step = -1;  // the last one in which it was assigned
    int64_t buffer_of_first = 0;
    bool first_is_there = false;
  };

  std::optional<int64_t> Take();

  const std::vector<int32_t> places_;
  const int64_t num_layers_;
  std::vector<OfBlock> streams_;  // those that ever had a block
  absl::flat_hash_map<Filling, int64_t> numbers_;
  int64_t step_ = 0;        // of those that named any block
  bool names_any_ = false;  // this step, so far
  int64_t next_idle_ = 0;   // all before it are of this step, or of the one before
  int64_t end_ = 0;         // all from it on are of this step
};

}  // namespace swiftcache::engine::kv
