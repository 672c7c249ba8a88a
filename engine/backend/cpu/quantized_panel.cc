// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/quantized_panel.h"

#include <glog/logging.h>

#include <cstring>

#include "engine/backend/weight_blocks.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// One block of a panel: codes as a file has them, unsigned but for Q8_0; scale and minimum as bits of f16, or as int8.
struct Block {
  int8_t codes[kBlockInputs];
  uint16_t scale = 0, minimum = 0;
};

// Of a K format, what its blocks' are multiplied by: bits of f16.
struct SuperBlock {
  uint16_t scale = 0, minimum = 0;
};

template <typename T>
T Load(const uint8_t* p) {
  return weight_blocks::Load<T>(p);
}

// Low nibbles are elements 0..15, high ones 16..31; bit i of `high` is the fifth bit of element i.
void SplitNibbles(const uint8_t* nibbles, uint32_t high, int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>((nibbles[i] & 15) | static_cast<int>((high >> i) & 1u) << 4);
    codes[i + 16] = static_cast<int8_t>((nibbles[i] >> 4) | static_cast<int>((high >> (i + 16)) & 1u) << 4);
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
      SplitNibbles(b + 2, 0, block.codes);
      break;
    case WeightFormat::kQ4_1:
      block.minimum = Load<uint16_t>(b + 2);
      SplitNibbles(b + 4, 0, block.codes);
      break;
    case WeightFormat::kQ5_0:
      SplitNibbles(b + 6, Load<uint32_t>(b + 2), block.codes);
      break;
    case WeightFormat::kQ5_1:
      block.minimum = Load<uint16_t>(b + 2);
      SplitNibbles(b + 8, Load<uint32_t>(b + 4), block.codes);
      break;
    default:
      LOG(FATAL) << "no blocks of " << NameOf(format);
  }
  return block;
}

constexpr uint16_t kSign = 0x8000;  // of f16

// The blocks of a panel that a file's block of a K format makes, `inputs` elements each. Minima are subtracted there.
SuperBlock ReadSuperBlock(WeightFormat format, const uint8_t* b, int inputs, Block* blocks) {
  const auto put = [&](int i, int code, int scale, int minimum) {
    Block& block = blocks[i / inputs];
    block.codes[i % inputs] = static_cast<int8_t>(code);
    block.scale = static_cast<uint8_t>(scale);
    block.minimum = static_cast<uint8_t>(minimum);
  };
  switch (format) {
    case WeightFormat::kQ4_K:
      weight_blocks::CodesQ4_K(b, put);
      return {Load<uint16_t>(b), static_cast<uint16_t>(Load<uint16_t>(b + 2) ^ kSign)};
    case WeightFormat::kQ5_K:
      weight_blocks::CodesQ5_K(b, put);
      return {Load<uint16_t>(b), static_cast<uint16_t>(Load<uint16_t>(b + 2) ^ kSign)};
    case WeightFormat::kQ6_K:
      weight_blocks::CodesQ6_K(b, put);
      return {Load<uint16_t>(b + 208)};
    default:
      LOG(FATAL) << "no super-blocks of " << NameOf(format);
  }
}

// Where a group of inputs has the codes of an output; that of the input behind it is a byte, or a bit, further.
struct CodePlace {
  int64_t group_bytes;  // of pairs or quads of inputs, for all outputs
  int64_t byte;         // of all 8 bits, or of the lower four
  int shift;            // there
  int64_t bits_byte;    // of the fifth bit
  int bit;              // there
  int64_t next_bits;    // from the fifth bit to the sixth, in bytes
};

int LogTogether(const QuantizedLayout& layout) { return layout.int8 ? 2 : 1; }
int Together(const QuantizedLayout& layout) { return 1 << LogTogether(layout); }

CodePlace PlaceOf(const QuantizedLayout& layout, int output) {
  const int64_t together = Together(layout), group_bytes = together * 32 * layout.code_bits / 8;
  if (layout.code_bits == 8) return {.group_bytes = group_bytes, .byte = output * together};
  return {.group_bytes = group_bytes,
          .byte = output % 16 * together,
          .shift = output < 16 ? 0 : 4,
          .bits_byte = 16 * together + output * together / 8,
          .bit = static_cast<int>(output * together % 8),
          .next_bits = 32 * together / 8};
}

void PutBlock(const QuantizedLayout& layout, const Block& block, int output, std::byte* to) {
  const CodePlace at = PlaceOf(layout, output);
  const int together = Together(layout), zero = layout.code_bits == 8 ? layout.zero : 0;
  const int8_t* code = block.codes;
  std::byte* group = to;
  for (int64_t i = 0; i < layout.inputs; i += together, group += at.group_bytes) {
    for (int k = 0; k < together; ++k, ++code) {
      if (layout.code_bits == 8) {
        group[at.byte + k] = static_cast<std::byte>(*code + zero);
        continue;
      }
      group[at.byte + k] |= static_cast<std::byte>((*code & 15) << at.shift);
      for (int b = 4; b < layout.code_bits; ++b) {
        group[at.bits_byte + (b - 4) * at.next_bits] |= static_cast<std::byte>(((*code >> b) & 1) << (at.bit + k));
      }
    }
  }
  std::memcpy(to + layout.code_bytes() + layout.scale_bytes * output, &block.scale, layout.scale_bytes);
  if (layout.has_minima) {
    std::memcpy(to + layout.minima_at() + layout.scale_bytes * output, &block.minimum, layout.scale_bytes);
  }
}

int GetCode(const QuantizedLayout& layout, const CodePlace& at, int64_t input, const std::byte* block) {
  const std::byte* const group = block + (input >> LogTogether(layout)) * at.group_bytes;  // no division for each input
  const int64_t k = input & (Together(layout) - 1);
  const auto byte = static_cast<uint8_t>(group[at.byte + k]);
  if (layout.code_bits == 8) return layout.int8 ? byte : static_cast<int8_t>(byte);
  int code = (byte >> at.shift) & 15;
  for (int b = 4; b < layout.code_bits; ++b) {
    code |= (static_cast<int>(group[at.bits_byte + (b - 4) * at.next_bits]) >> (at.bit + k) & 1) << b;
  }
  return code;
}

float LoadHalf(const std::byte* p) { return weight_blocks::LoadHalf(reinterpret_cast<const uint8_t*>(p)); }

// super: the factor of the output's super-block, where there is one.
float LoadScale(const QuantizedLayout& layout, const std::byte* p, const std::byte* super) {
  return layout.scale_bytes == 2 ? LoadHalf(p) : LoadHalf(super) * static_cast<float>(static_cast<int8_t>(*p));
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
      return QuantizedLayout{.code_bits = 5, .zero = 16, .int8 = int8};
    case WeightFormat::kQ5_1:
      return QuantizedLayout{.code_bits = 5, .has_minima = true, .int8 = int8};
    case WeightFormat::kQ4_0:
      return QuantizedLayout{.code_bits = 4, .zero = 8, .int8 = int8};
    case WeightFormat::kQ4_1:
      return QuantizedLayout{.code_bits = 4, .has_minima = true, .int8 = int8};
    case WeightFormat::kQ4_K:
      return QuantizedLayout{.code_bits = 4, .has_minima = true, .scale_bytes = 1, .int8 = int8};
    case WeightFormat::kQ5_K:
      return QuantizedLayout{.code_bits = 5, .has_minima = true, .scale_bytes = 1, .int8 = int8};
    case WeightFormat::kQ6_K:
      return QuantizedLayout{.code_bits = 6, .zero = 32, .scale_bytes = 1, .inputs = 16, .int8 = int8};
    default:
      return std::nullopt;
  }
}

void PutQuantizedRow(const QuantizedLayout& layout, WeightFormat format, const std::byte* row, int64_t cols, int output,
                     std::byte* panel) {
  const auto* from = reinterpret_cast<const uint8_t*>(row);
  constexpr int64_t kMost = 16;
  const int64_t at_once = BlockOf(format).elements / layout.inputs, blocks = cols / layout.inputs;
  CHECK_LE(at_once, kMost);
  for (int64_t b = 0; b < blocks; b += at_once, from += BlockOf(format).bytes) {
    Block read[kMost];
    if (at_once == 1) {
      read[0] = ReadSmallBlock(format, from);
    } else {
      const SuperBlock super = ReadSuperBlock(format, from, layout.inputs, read);
      std::byte* const to = panel + layout.block_at(b) - layout.super_bytes() + 2 * output;
      std::memcpy(to, &super.scale, 2);
      if (layout.has_minima) std::memcpy(to + kSuperBlockBytes, &super.minimum, 2);
    }
    for (int64_t i = 0; i < at_once; ++i) PutBlock(layout, read[i], output, panel + layout.block_at(b + i));
  }
}

void GetQuantizedRow(const QuantizedLayout& layout, const std::byte* panel, int64_t cols, int output, float* out) {
  const CodePlace at = PlaceOf(layout, output);
  const int64_t blocks = cols / layout.inputs;
  for (int64_t b = 0; b < blocks; ++b, out += layout.inputs) {
    const int64_t first =
        b * layout.inputs / kSuperBlockInputs * kSuperBlockInputs / layout.inputs;  // of its super-block
    const std::byte* const block = panel + layout.block_at(b);
    const std::byte* const super = panel + layout.block_at(first) - layout.super_bytes() + 2 * output;
    const int64_t of_output = layout.scale_bytes * output;
    const float scale = LoadScale(layout, block + layout.code_bytes() + of_output, super);
    const float minimum =
        layout.has_minima ? LoadScale(layout, block + layout.minima_at() + of_output, super + kSuperBlockBytes) : 0;
    for (int64_t i = 0; i < layout.inputs; ++i) {
      const float product = scale * static_cast<float>(GetCode(layout, at, i, block) - layout.zero);
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
