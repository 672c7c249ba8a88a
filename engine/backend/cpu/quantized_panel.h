// SPDX-License-Identifier: Apache-2.0
// Panels of weights that stay as a file has quantised them, so that a product of few rows reads a file's bytes (K formats:
// up to 3 % more). A panel of 32 outputs is blocks of 32 inputs (Q6_K: 16), one after the other, each of these:
//
//   codes    one pair of inputs after the other, and of each pair
//            8 bits: [32 outputs][2 inputs] int8
//            fewer:  [16 outputs][2] bytes: the lower four bits of an output's code in the lower half, those of the output
//                    16 further in the upper one; then for each higher bit [32 outputs][2] bits, the first the lowest
//   scales   f16 [32 outputs]; of the K formats int8, to be multiplied by the super-block's
//   minima   likewise, where the format has them
//
// In the K formats 256 inputs are a super-block, and before its first block stand f16 [32 outputs] for scales, then for
// minima. For integer products (`int8`) codes are unsigned, zero included, and four inputs stand side by side, not two.
//
// A weight is scale * (code - zero) + minimum. Products sum code times input within a block, where both are exact, then
// scale the sum: nothing is rounded but the input, to bf16 or to 8 bits (int8_row.h). For the minima each row has the sum
// of its inputs by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "engine/backend/bf16.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend::cpu {

inline constexpr int64_t kBlockInputs = 32;          // of a block, at most
inline constexpr int64_t kSuperBlockInputs = 256;    // of the K formats
inline constexpr int64_t kSuperBlockBytes = 32 * 2;  // of its scales, and of its minima
inline constexpr int64_t kAhead = 4096;  // bytes; from memory a panel comes as fast as its reader asks for it

/// What stands before the first block of a super-block.
constexpr int64_t SuperBytes(int scale_bytes, bool has_minima) {
  return scale_bytes == 1 ? (has_minima ? 2 : 1) * kSuperBlockBytes : 0;
}

/// Thread-safety: a value. Units: bytes.
struct QuantizedLayout {
  int code_bits = 8;  // 4, 5, 6 or 8
  int zero = 0;       // below 8 bits, and where `int8`
  bool has_minima = false;
  int scale_bytes = 2;             // f16, or 1: int8, in super-blocks
  int inputs = int{kBlockInputs};  // of a block; or 16, without minima
  bool int8 = false;               // for integer products

  int64_t code_bytes() const { return int64_t{inputs} * 32 * code_bits / 8; }
  int64_t minima_at() const { return code_bytes() + 32 * scale_bytes; }
  int64_t block_bytes() const { return has_minima ? minima_at() + 32 * scale_bytes : minima_at(); }
  int64_t super_bytes() const { return SuperBytes(scale_bytes, has_minima); }
  /// Where a block begins within its panel.
  int64_t block_at(int64_t block) const {
    return block * block_bytes() + (block * inputs / kSuperBlockInputs + 1) * super_bytes();
  }
  int64_t panel_bytes(int64_t cols) const {
    return cols / inputs * block_bytes() + cols / kSuperBlockInputs * super_bytes();
  }
  friend bool operator==(const QuantizedLayout&, const QuantizedLayout&) = default;
};

/// What of a layout the kernels are compiled for. Other combinations do not exist.
template <int kBits_, int kScaleBytes_, bool kMinima_, int kInputs>
struct QuantizedForm {
  static constexpr int kBits = kBits_, kScaleBytes = kScaleBytes_, kPairs = kInputs / 2;
  static constexpr bool kMinima = kMinima_;
  using OfAnyBits = QuantizedForm<0, kScaleBytes_, kMinima_, kInputs>;
  /// Blocks of a super-block; 0: there are none.
  static constexpr int64_t kSuperBlocks = kScaleBytes == 1 ? kSuperBlockInputs / kInputs : 0;
  static constexpr int64_t kSuperBytes = SuperBytes(kScaleBytes, kMinima);
};

/// Calls run.operator()<QuantizedForm>() with that of the layout.
template <class Run>
void WithForm(const QuantizedLayout& layout, Run run) {
  const bool super_blocks = layout.scale_bytes == 1, minima = layout.has_minima;
  switch (layout.code_bits) {
    case 4:
      if (super_blocks) return run.template operator()<QuantizedForm<4, 1, true, 32>>();  // Q4_K
      if (minima) return run.template operator()<QuantizedForm<4, 2, true, 32>>();        // Q4_1
      return run.template operator()<QuantizedForm<4, 2, false, 32>>();                   // Q4_0
    case 5:
      if (super_blocks) return run.template operator()<QuantizedForm<5, 1, true, 32>>();  // Q5_K
      if (minima) return run.template operator()<QuantizedForm<5, 2, true, 32>>();        // Q5_1
      return run.template operator()<QuantizedForm<5, 2, false, 32>>();                   // Q5_0
    case 6:
      return run.template operator()<QuantizedForm<6, 1, false, 16>>();  // Q6_K
    default:
      return run.template operator()<QuantizedForm<8, 2, false, 32>>();  // Q8_0
  }
}

/// How panels hold a format, for integer products or others; nothing: it is not quantised.
std::optional<QuantizedLayout> QuantizedLayoutOf(WeightFormat format, bool int8);

/// Stores a row of the file as output `output` of a panel. `cols` are the panel's inputs, here and below.
/// REQUIRES: `layout` is one of the format's; the panel was zeroed.
void PutQuantizedRow(const QuantizedLayout& layout, WeightFormat format, const std::byte* row, int64_t cols, int output,
                     std::byte* panel);
/// The output's weights, in the bits of DequantizeRow. out: f32 [cols].
void GetQuantizedRow(const QuantizedLayout& layout, const std::byte* panel, int64_t cols, int output, float* out);

/// sums[i] = the sum of the inputs of block i, in an order that is fixed. inputs: [blocks * kBlockInputs].
void SumBlocks(const float* inputs, int64_t blocks, float* sums);
void SumBlocks(const Bf16* inputs, int64_t blocks, float* sums);

/// For kernels of integers, as the number of rows from which on they unpack.
inline constexpr int64_t kNeverUnpack = std::numeric_limits<int64_t>::max();

/// As PanelGemm, over such a panel. Many rows unpack it first, into `scratch`; that changes no bit of the result.
struct QuantizedGemm {
  const void* a = nullptr;      // f32 [rows][lda], or bf16, or Int8Group where the layout is `int8`
  const float* sums = nullptr;  // f32 [rows][ld_sums], by SumBlocks; read where the layout has minima and is not `int8`
  int64_t lda = 0, ld_sums = 0;  // elements
  const std::byte* b = nullptr;
  int64_t blocks = 0;
  QuantizedLayout layout;
  // At a multiple of 64: [blocks * layout.inputs][32] elements of a, or bytes where `int8`, and behind them f32 [blocks][64].
  void* scratch = nullptr;
  float* c = nullptr;  // f32 [rows][ldc]
  int64_t ldc = 0;
  int64_t rows = 0;
  const float* bias = nullptr;  // f32 [32] or nothing
  bool add = false;
  bool pairs = false;  // where `int8`: rows come in pairs whose products are added: c is f32 [rows / 2][ldc]
};

}  // namespace swiftcache::engine::backend::cpu
