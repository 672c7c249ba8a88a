// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/quantized_panel.h"

#include <glog/logging.h>

#include <cstring>

#include "engine/backend/weight_blocks.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// One stored block: codes as panels have them, scale and minimum as f16.
struct Block {
  int8_t codes[kBlockInputs];
  uint16_t scale = 0, minimum = 0;
};

template <typename T>
T Load(const uint8_t* p) {
  return weight_blocks::Load<T>(p);
}

// Low nibbles are elements 0..15, high ones 16..31; bit i of `high` is the fifth bit of element i.
void SplitNibbles(const uint8_t* nibbles, uint32_t high, int subtract, int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>(((nibbles[i] & 15) | static_cast<int>((high >> i) & 1u) << 4) - subtract);
    codes[i + 16] =
        static_cast<int8_t>(((nibbles[i] >> 4) | static_cast<int>((high >> (i + 16)) & 1u) << 4) - subtract);
  }
}

// engine/backend/weight_blocks.h has the layouts.
Block ReadBlock(WeightFormat format, const uint8_t* b) {
  Block block;
  block.scale = Load<uint16_t>(b);
  switch (format) {
    case WeightFormat::kQ8_0:
      std::memcpy(block.codes, b + 2, sizeof block.codes);
      break;
    case WeightFormat::kQ4_0:
      SplitNibbles(b + 2, 0, 0, block.codes);
      break;
    case WeightFormat::kQ4_1:
      block.minimum = Load<uint16_t>(b + 2);
      SplitNibbles(b + 4, 0, 0, block.codes);
      break;
    case WeightFormat::kQ5_0:
      SplitNibbles(b + 6, Load<uint32_t>(b + 2), 16, block.codes);
      break;
    case WeightFormat::kQ5_1:
      block.minimum = Load<uint16_t>(b + 2);
      SplitNibbles(b + 8, Load<uint32_t>(b + 4), 0, block.codes);
      break;
    default:
      LOG(FATAL) << "no blocks of " << NameOf(format);
  }
  return block;
}

// Where a block has the code of an input of an output. 4 bits: the half that `output` / 16 says.
int64_t CodeAt(const QuantizedLayout& layout, int64_t input, int output) {
  return layout.code_bits == 8 ? input / 2 * 64 + output * 2 + input % 2 : input / 2 * 32 + output % 16 * 2 + input % 2;
}

template <typename T, typename Widen>
void Sum(const T* inputs, int64_t blocks, float* sums, Widen widen) {
  constexpr int kParts = 8;
  for (int64_t b = 0; b < blocks; ++b, inputs += kBlockInputs) {
    float part[kParts] = {};
    for (int i = 0; i < kBlockInputs; i += kParts) {
      for (int p = 0; p < kParts; ++p) part[p] += widen(inputs[i + p]);
    }
    sums[b] = ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
  }
}

}  // namespace

std::optional<QuantizedLayout> QuantizedLayoutOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
    case WeightFormat::kQ5_0:
      return QuantizedLayout{.code_bits = 8};
    case WeightFormat::kQ5_1:
      return QuantizedLayout{.code_bits = 8, .has_minima = true};
    case WeightFormat::kQ4_0:
      return QuantizedLayout{.code_bits = 4, .zero = 8};
    case WeightFormat::kQ4_1:
      return QuantizedLayout{.code_bits = 4, .has_minima = true};
    default:
      return std::nullopt;
  }
}

void PutQuantizedRow(WeightFormat format, const std::byte* row, int64_t blocks, int output, std::byte* panel) {
  const QuantizedLayout layout = *QuantizedLayoutOf(format);
  const auto* from = reinterpret_cast<const uint8_t*>(row);
  for (int64_t b = 0; b < blocks; ++b, from += BlockOf(format).bytes, panel += layout.block_bytes()) {
    const Block block = ReadBlock(format, from);
    for (int64_t i = 0; i < kBlockInputs; ++i) {
      std::byte& to = panel[CodeAt(layout, i, output)];
      const auto code = static_cast<std::byte>(block.codes[i]);
      if (layout.code_bits == 8) {
        to = code;
      } else {
        to = output < 16 ? (to & std::byte{0xF0}) | code : (to & std::byte{0x0F}) | code << 4;
      }
    }
    std::byte* const scales = panel + layout.code_bytes();
    std::memcpy(scales + 2 * output, &block.scale, 2);
    if (layout.has_minima) std::memcpy(scales + 64 + 2 * output, &block.minimum, 2);
  }
}

void GetQuantizedRow(const QuantizedLayout& layout, const std::byte* panel, int64_t blocks, int output, float* out) {
  for (int64_t b = 0; b < blocks; ++b, panel += layout.block_bytes(), out += kBlockInputs) {
    const auto* scales = reinterpret_cast<const uint8_t*>(panel) + layout.code_bytes();
    const float scale = weight_blocks::LoadHalf(scales + 2 * output);
    const float minimum = layout.has_minima ? weight_blocks::LoadHalf(scales + 64 + 2 * output) : 0;
    for (int64_t i = 0; i < kBlockInputs; ++i) {
      const auto byte = static_cast<uint8_t>(panel[CodeAt(layout, i, output)]);
      const int code = layout.code_bits == 8 ? static_cast<int8_t>(byte) : (output < 16 ? byte & 15 : byte >> 4);
      const float product = scale * static_cast<float>(code - layout.zero);
      out[i] = layout.has_minima ? product + minimum : product;
    }
  }
}

void SumBlocks(const float* inputs, int64_t blocks, float* sums) {
  Sum(inputs, blocks, sums, [](float x) { return x; });
}

void SumBlocks(const Bf16* inputs, int64_t blocks, float* sums) {
  Sum(inputs, blocks, sums, [](Bf16 x) { return FromBf16(x); });
}

}  // namespace swiftcache::engine::backend::cpu
