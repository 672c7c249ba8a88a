// SPDX-License-Identifier: Apache-2.0
// Panels of weights that stay as a file has quantised them, so that a product of few rows reads a file's bytes and no
// more. A panel of 32 outputs is blocks of 32 inputs (Q6_K: 16), one after the other, each of these:
//
//   codes    8 bits: [pairs of inputs][32 outputs][2] int8
//            4 bits: [pairs of inputs][16 outputs][2] bytes: the code of an output in the lower half, that of the
//            output 16 further in the upper one
//   scales   f16 [32 outputs]; f32 where the file's are products, as those of the K formats
//   minima   likewise, where the format has them
//
// For integer products (`int8`) codes are unsigned, zero included, and four inputs stand side by side:
//
//   codes    8 bits: [quads of inputs][32 outputs][4] uint8
//            4 bits: [quads of inputs][16 outputs][4] bytes, halves as above
//
// A weight is scale * (code - zero) + minimum. Products sum code times input within a block, where both are exact, then
// scale the sum: nothing is rounded but the input, to bf16 or to 8 bits (int8_row.h). For the minima each row has the sum
// of its inputs by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/backend/bf16.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend::cpu {

inline constexpr int64_t kBlockInputs = 32;  // of a block, at most

/// Thread-safety: a value. Units: bytes.
struct QuantizedLayout {
  int code_bits = 8;  // or 4
  int zero = 0;       // 4 bits, and where `int8`
  bool has_minima = false;
  int scale_bytes = 2;             // f16, or 4: f32
  int inputs = int{kBlockInputs};  // of a block; or 16, without minima
  bool int8 = false;               // for integer products

  int64_t code_bytes() const { return int64_t{inputs} * 32 * code_bits / 8; }
  int64_t minima_at() const { return code_bytes() + 32 * scale_bytes; }
  int64_t block_bytes() const { return has_minima ? minima_at() + 32 * scale_bytes : minima_at(); }
};

/// What of a layout the kernels are compiled for, beside the bits of a code. Other combinations do not exist.
template <int kScaleBytes_, bool kMinima_, int kInputs>
struct QuantizedForm {
  static constexpr int kScaleBytes = kScaleBytes_, kPairs = kInputs / 2;
  static constexpr bool kMinima = kMinima_;
};

/// How panels hold a format, for integer products or others; nothing: it is not quantised.
std::optional<QuantizedLayout> QuantizedLayoutOf(WeightFormat format, bool int8);

/// Stores a row of the file as output `output` of a panel. `blocks` are the panel's, here and below.
/// REQUIRES: `layout` is one of the format's.
void PutQuantizedRow(const QuantizedLayout& layout, WeightFormat format, const std::byte* row, int64_t blocks,
                     int output, std::byte* panel);
/// The output's weights, in the bits of DequantizeRow. out: f32 [blocks * layout.inputs].
void GetQuantizedRow(const QuantizedLayout& layout, const std::byte* panel, int64_t blocks, int output, float* out);

/// sums[i] = the sum of the inputs of block i, in an order that is fixed. inputs: [blocks * kBlockInputs].
void SumBlocks(const float* inputs, int64_t blocks, float* sums);
void SumBlocks(const Bf16* inputs, int64_t blocks, float* sums);

/// As PanelGemm, over such a panel. Many rows unpack it first, into `scratch`; that changes no bit of the result.
struct QuantizedGemm {
  const void* a = nullptr;      // f32 [rows][lda], or bf16, or Int8Group where the layout is `int8`
  const float* sums = nullptr;  // f32 [rows][ld_sums], by SumBlocks; read where the layout has minima and is not `int8`
  int64_t lda = 0, ld_sums = 0;  // elements
  const std::byte* b = nullptr;
  int64_t blocks = 0;
  QuantizedLayout layout;
  void* scratch = nullptr;  // of elements of a: [blocks * layout.inputs][32], at a multiple of 64; not where `int8`
  float* c = nullptr;       // f32 [rows][ldc]
  int64_t ldc = 0;
  int64_t rows = 0;
  const float* bias = nullptr;  // f32 [32] or nothing
  bool add = false;
};

}  // namespace swiftcache::engine::backend::cpu
