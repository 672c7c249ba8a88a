// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/layer_stream.h"

#include <algorithm>
#include <numeric>

#include "common/base/units.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {

int64_t SliceBytes(int64_t block_tokens, int64_t kv_heads, int64_t head_dim, int64_t element_bytes) {
  return 2 * block_tokens * kv_heads * head_dim * element_bytes;
}

int64_t FullLayerBlocks(int64_t worker_bytes, int64_t slice_bytes, int64_t num_layers) {
  return worker_bytes / (slice_bytes * num_layers);
}

int64_t SingleLayerBlocks(int64_t master_bytes, int64_t slice_bytes) { return master_bytes / slice_bytes; }

LayerStreamSizes SizeLayerStream(int64_t local_slices, std::span<const int64_t> worker_blocks, int64_t num_layers) {
  const int64_t leased = std::accumulate(worker_blocks.begin(), worker_blocks.end(), int64_t{0});
  const int64_t lsc_slots = std::min(leased, local_slices);
  return {.lsc_slots = lsc_slots, .rc_blocks = (local_slices - lsc_slots) / num_layers};
}

int64_t StreamBlocksFor(int64_t leased_blocks, int64_t num_layers) {
  return CeilDiv(kStreamBuffers * leased_blocks, num_layers);
}

int64_t MaxStreamedBlocks(int64_t local_blocks, int64_t keep_blocks, int64_t num_layers) {
  return std::max<int64_t>(0, local_blocks - keep_blocks) * num_layers / kStreamBuffers;
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
