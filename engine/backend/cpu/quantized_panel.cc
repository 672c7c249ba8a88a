// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/quantized_panel.h"

#include <glog/logging.h>

#include <bit>
#include <cstring>

#include "engine/backend/weight_blocks.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// One block of a panel: codes as panels have them; scale and minimum as bits of f16 or f32.
struct Block {
  int8_t codes[kBlockInputs];
  uint32_t scale = 0, minimum = 0;
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
Block ReadSmallBlock(WeightFormat format, const uint8_t* b) {
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
  const int64_t together = layout.int8 ? 4 : 2, outputs = layout.code_bits == 8 ? 32 : 16;
  return (input / together * outputs + output % outputs) * together + input % together;
}

// The blocks of a panel that a file's block of a K format makes, `inputs` elements each.
void ReadSuperBlock(WeightFormat format, const uint8_t* b, int inputs, Block* blocks) {
  const auto put = [&](int i, float scale, int code, float min) {
    Block& block = blocks[i / inputs];
    block.codes[i % inputs] = static_cast<int8_t>(code);
    block.scale = std::bit_cast<uint32_t>(scale);
    block.minimum = std::bit_cast<uint32_t>(-min);
  };
  switch (format) {
    case WeightFormat::kQ4_K:
      return weight_blocks::CodesQ4_K(b, put);
    case WeightFormat::kQ5_K:
      return weight_blocks::CodesQ5_K(b, put);
    case WeightFormat::kQ6_K:
      return weight_blocks::CodesQ6_K(b, put);
    default:
      LOG(FATAL) << "no super-blocks of " << NameOf(format);
  }
}

void PutBlock(const QuantizedLayout& layout, const Block& block, int output, std::byte* to) {
  for (int64_t i = 0; i < layout.inputs; ++i) {
    std::byte& at = to[CodeAt(layout, i, output)];
    const auto code = static_cast<std::byte>(block.codes[i] + (layout.int8 && layout.code_bits == 8 ? layout.zero : 0));
    if (layout.code_bits == 8) {
      at = code;
    } else {
      at = output < 16 ? (at & std::byte{0xF0}) | code : (at & std::byte{0x0F}) | code << 4;
    }
  }
  std::memcpy(to + layout.code_bytes() + layout.scale_bytes * output, &block.scale, layout.scale_bytes);
  if (layout.has_minima) {
    std::memcpy(to + layout.minima_at() + layout.scale_bytes * output, &block.minimum, layout.scale_bytes);
  }
}

float LoadScale(const QuantizedLayout& layout, const std::byte* p) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p);
  return layout.scale_bytes == 2 ? weight_blocks::LoadHalf(bytes) : Load<float>(bytes);
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

std::optional<QuantizedLayout> QuantizedLayoutOf(WeightFormat format, bool int8) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return QuantizedLayout{.code_bits = 8, .zero = int8 ? 128 : 0, .int8 = int8};
    case WeightFormat::kQ5_0:
      return QuantizedLayout{.code_bits = 8, .zero = int8 ? 16 : 0, .int8 = int8};
    case WeightFormat::kQ5_1:
      return QuantizedLayout{.code_bits = 8, .has_minima = true, .int8 = int8};
    case WeightFormat::kQ4_0:
      return QuantizedLayout{.code_bits = 4, .zero = 8, .int8 = int8};
    case WeightFormat::kQ4_1:
      return QuantizedLayout{.code_bits = 4, .has_minima = true, .int8 = int8};
    case WeightFormat::kQ4_K:
      return QuantizedLayout{.code_bits = 4, .has_minima = true, .scale_bytes = 4, .int8 = int8};
    case WeightFormat::kQ5_K:
      return QuantizedLayout{.code_bits = 8, .has_minima = true, .scale_bytes = 4, .int8 = int8};
    case WeightFormat::kQ6_K:
      return QuantizedLayout{.code_bits = 8, .zero = int8 ? 32 : 0, .scale_bytes = 4, .inputs = 16, .int8 = int8};
    default:
      return std::nullopt;
  }
}

void PutQuantizedRow(const QuantizedLayout& layout, WeightFormat format, const std::byte* row, int64_t blocks,
                     int output, std::byte* panel) {
  const auto* from = reinterpret_cast<const uint8_t*>(row);
  constexpr int64_t kMost = 16;
  const int64_t at_once = BlockOf(format).elements / layout.inputs;
  CHECK_LE(at_once, kMost);
  for (int64_t b = 0; b < blocks; b += at_once, from += BlockOf(format).bytes) {
    Block read[kMost];
    if (at_once == 1) {
      read[0] = ReadSmallBlock(format, from);
    } else {
      ReadSuperBlock(format, from, layout.inputs, read);
    }
    for (int64_t i = 0; i < at_once; ++i, panel += layout.block_bytes()) PutBlock(layout, read[i], output, panel);
  }
}

void GetQuantizedRow(const QuantizedLayout& layout, const std::byte* panel, int64_t blocks, int output, float* out) {
  for (int64_t b = 0; b < blocks; ++b, panel += layout.block_bytes(), out += layout.inputs) {
    const int64_t at = layout.scale_bytes * output;
    const float scale = LoadScale(layout, panel + layout.code_bytes() + at);
    const float minimum = layout.has_minima ? LoadScale(layout, panel + layout.minima_at() + at) : 0;
    for (int64_t i = 0; i < layout.inputs; ++i) {
      const auto byte = static_cast<uint8_t>(panel[CodeAt(layout, i, output)]);
      const int eight = layout.int8 ? byte : static_cast<int8_t>(byte);
      const int code = layout.code_bits == 8 ? eight : (output < 16 ? byte & 15 : byte >> 4);
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
