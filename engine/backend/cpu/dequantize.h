// SPDX-License-Identifier: Apache-2.0
// The exact values of stored weights as f32.
//
//   std::vector<float> row(source.cols);
//   DequantizeRow(source, 5, row.data());
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend::cpu {

/// Decodes `cols` elements, in the order of operations of GGML's reference (so the bits are equal), without fused
/// multiply-add. src: cols / elements-per-block blocks, any alignment; out: [cols].
/// REQUIRES: cols is a multiple of the block's elements.
void DequantizeRow(WeightFormat format, const std::byte* src, int64_t cols, float* out);

/// Row `row` of the matrix, whichever row of the file that is. out: [source.cols].
void DequantizeRow(const WeightSource& source, int64_t row, float* out);

}  // namespace swiftcache::engine::backend::cpu
