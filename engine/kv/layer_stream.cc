// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/layer_stream.h"

#include <algorithm>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

LayerStreamSizes DivideSlices(int64_t own_slices, int64_t leased_blocks, int64_t slots_per_block, int64_t num_layers) {
  const int64_t lsc_slots = std::min(slots_per_block * leased_blocks, own_slices);      // eq. 4
  return {.lsc_slots = lsc_slots, .rc_blocks = (own_slices - lsc_slots) / num_layers};  // eq. 5
}

int64_t StreamBlocksFor(int64_t own_blocks, int64_t leased_blocks, int64_t num_layers) {
  const int64_t half = own_blocks / 2;
  return half - DivideSlices(half * num_layers, leased_blocks, kStreamBuffers, num_layers).rc_blocks;
}

LayerSlots::LayerSlots(std::span<const int32_t> places, int64_t num_layers)
    : places_(places.begin(), places.end()), num_layers_(num_layers) {
  CHECK_GT(num_layers, 0);
}

std::optional<int64_t> LayerSlots::Assign(BlockId block) {
  const auto known = streams_.find(block);
  if (known != streams_.end()) return known->second;
  if (size() == capacity()) return std::nullopt;
  return streams_.emplace(block, size()).first->second;
}

// Buffers lie one behind the other, so that neighbouring streams are neighbours in memory.
LayerSlots::Slot LayerSlots::At(int64_t stream, int64_t layer) const {
  const int64_t slot = layer % kStreamBuffers * capacity() + stream;
  return {places_[slot / num_layers_], slot % num_layers_};
}

}  // namespace swiftcache::engine::kv
