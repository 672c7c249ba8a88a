// SPDX-License-Identifier: Apache-2.0
// Where a kernel finds the KV of a step: index and stride arithmetic, shared by host and device.
//
//   const Bf16* k = KvAt<Bf16>(tables, shape, sequence, layer, position, kv_head, /*value=*/false);
#pragma once

#include <cstdint>

#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

/// A block of a step: the slice of layer l begins at slices[l % 2] + l * layer_stride. The blocks of own memory and of
/// leases that are read in place have both slices alike and a stride of slice_bytes; a streamed block's two slices are
/// its slots, and its stride is 0.
struct KvBlock {
  uint64_t slices[2] = {0, 0};
  int64_t layer_stride = 0;
};

/// KvLayout as kernels want it. Units: elements.
struct KvShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_tokens = 0;

  friend bool operator==(const KvShape&, const KvShape&) = default;
};

/// Where the rows of a step stand. Arrays on the device.
struct StepTables {
  const int32_t* sequence = nullptr;     // [rows]: of the step
  const int32_t* position = nullptr;     // [rows]
  const int32_t* first_block = nullptr;  // [sequences]: in `blocks`
  const KvBlock* blocks = nullptr;       // [num_blocks]: of all sequences, one after the other
  int64_t num_blocks = 0;

  friend bool operator==(const StepTables&, const StepTables&) = default;
};

GPU_CODE inline uint64_t SliceOf(const KvBlock& block, int64_t layer) {
  return block.slices[layer % 2] + static_cast<uint64_t>(layer * block.layer_stride);
}

/// K or V of a position of the sequence whose blocks are `blocks`: [head_dim] elements.
template <class Kv>
GPU_CODE Kv* KvIn(const KvBlock* blocks, const KvShape& kv, int64_t layer, int64_t position, int64_t kv_head,
                  bool value) {
  // Of 32 bits: a GPU divides whole numbers of 64 by a routine.
  const auto at = static_cast<uint32_t>(position), tokens = static_cast<uint32_t>(kv.block_tokens);
  const KvBlock& block = blocks[at / tokens];
  const int64_t head = kv_head + (value ? kv.num_kv_heads : 0);
  return reinterpret_cast<Kv*>(SliceOf(block, layer)) + (head * kv.block_tokens + at % tokens) * kv.head_dim;
}

template <class Kv>
GPU_CODE Kv* KvAt(const StepTables& tables, const KvShape& kv, int64_t sequence, int64_t layer, int64_t position,
                  int64_t kv_head, bool value) {
  return KvIn<Kv>(tables.blocks + tables.first_block[sequence], kv, layer, position, kv_head, value);
}

}  // namespace swiftcache::engine::backend::cuda
