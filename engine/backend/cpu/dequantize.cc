// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/dequantize.h"

#include <cstring>

#include "engine/backend/weight_blocks.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// The format is known before the loop: what decodes a block is inlined into it.
template <WeightFormat kFormat>
void Blocks(const uint8_t* src, int64_t cols, float* out) {
  constexpr WeightBlock block = BlockOf(kFormat);
  for (int64_t i = 0; i < cols / block.elements; ++i, src += block.bytes, out += block.elements) {
    DecodeWeightBlock(kFormat, src, [out](int element, float value) { out[element] = value; });
  }
}

}  // namespace

void DequantizeRow(WeightFormat format, const std::byte* src, int64_t cols, float* out) {
  const auto* b = reinterpret_cast<const uint8_t*>(src);
  switch (format) {
    case WeightFormat::kF32:
      std::memcpy(out, b, static_cast<size_t>(cols) * sizeof(float));
      return;
    case WeightFormat::kF16:
      return Blocks<WeightFormat::kF16>(b, cols, out);
    case WeightFormat::kBf16:
      return Blocks<WeightFormat::kBf16>(b, cols, out);
    case WeightFormat::kQ8_0:
      return Blocks<WeightFormat::kQ8_0>(b, cols, out);
    case WeightFormat::kQ4_0:
      return Blocks<WeightFormat::kQ4_0>(b, cols, out);
    case WeightFormat::kQ4_1:
      return Blocks<WeightFormat::kQ4_1>(b, cols, out);
    case WeightFormat::kQ5_0:
      return Blocks<WeightFormat::kQ5_0>(b, cols, out);
    case WeightFormat::kQ5_1:
      return Blocks<WeightFormat::kQ5_1>(b, cols, out);
    case WeightFormat::kQ4_K:
      return Blocks<WeightFormat::kQ4_K>(b, cols, out);
    case WeightFormat::kQ5_K:
      return Blocks<WeightFormat::kQ5_K>(b, cols, out);
    case WeightFormat::kQ6_K:
      return Blocks<WeightFormat::kQ6_K>(b, cols, out);
  }
}

void DequantizeRow(const WeightSource& source, int64_t row, float* out) {
  DequantizeRow(source.format, source.Row(row), source.cols, out);
}

}  // namespace swiftcache::engine::backend::cpu
