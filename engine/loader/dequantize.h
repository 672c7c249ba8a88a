// SPDX-License-Identifier: Apache-2.0
// The element formats of weights: their blocks and their exact values as f32.
//
//   std::vector<float> row(cols);
//   DequantizeRow(TensorType::kQ4_K, bytes, cols, row.data());
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/loader/weights.h"

namespace swiftcache::engine::loader {

/// A format's block. Units: elements and bytes.
struct BlockShape {
  int64_t elements = 1;
  int64_t bytes = 0;
};

BlockShape BlockOf(TensorType type);
const char* NameOf(TensorType type);

/// Decodes `cols` elements, in the order of operations of GGML's reference (so the bits are equal), without fused
/// multiply-add. src: cols / elements-per-block blocks, any alignment; out: [cols].
/// REQUIRES: cols is a multiple of the block's elements.
void DequantizeRow(TensorType type, const std::byte* src, int64_t cols, float* out);

}  // namespace swiftcache::engine::loader
