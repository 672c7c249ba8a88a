// SPDX-License-Identifier: Apache-2.0
// The shapes that tests of the CUDA backend compute with.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {

inline constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kQkv = (kHeads + 2 * kKvHeads) * kDim;

inline BackendOptions SmallShapes() {
  return {
      .precision = Precision::kF32,
      .attention = {kHeads, kKvHeads, kDim},
      .kv = {.num_layers = 2, .num_kv_heads = kKvHeads, .head_dim = kDim, .block_tokens = 16, .dtype = KvDtype::kF32},
      .inverse_frequencies = std::vector<float>(kDim / 2, 0.3f),
      .max_rows = 700};
}

}  // namespace swiftcache::engine::backend::cuda
