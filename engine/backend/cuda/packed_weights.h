// SPDX-License-Identifier: Apache-2.0
// Weights as they lie on a GPU:
//
//   numbers    f32 or bf16: [rows][cols]
//   quantised  codes: [rows][cols / 32] of 16 or 32 bytes, then halves: [rows][cols / 32] of one f16 (scale) or two (scale,
//              minimum)
//
// A file has both in blocks of 18, 20 or 34 bytes. Apart, a block's codes lie where a thread reads 16 bytes at once.
//
//   const WeightFormat format = FormatOnDevice(source.format, Precision::kBf16);
//   const PackedWeights weights = PackedAt(format, memory.address(), rows, cols);
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend::cuda {

/// Those that products read as stored. Others are decoded when they are loaded.
constexpr bool IsQuantized(WeightFormat packed) {
  return packed == WeightFormat::kQ8_0 || packed == WeightFormat::kQ4_0 || packed == WeightFormat::kQ4_1;
}

/// REQUIRES: not quantised.
constexpr Number NumberOf(WeightFormat packed) { return packed == WeightFormat::kF32 ? Number::kF32 : Number::kBf16; }

/// How a matrix of a file is packed: a matter of its format and the precision alone.
constexpr WeightFormat FormatOnDevice(WeightFormat stored, Precision precision) {
  if (precision == Precision::kF32) return WeightFormat::kF32;
  return IsQuantized(stored) ? stored : WeightFormat::kBf16;
}

/// Of a block of 32 elements. Units: bytes.
constexpr int64_t CodeBytes(WeightFormat format) { return BlockOf(format).bytes / 16 * 16; }  // behind the halves
constexpr int64_t HalfBytes(WeightFormat format) { return BlockOf(format).bytes % 16; }
static_assert(CodeBytes(WeightFormat::kQ8_0) == 32 && HalfBytes(WeightFormat::kQ8_0) == 2);
static_assert(CodeBytes(WeightFormat::kQ4_0) == 16 && HalfBytes(WeightFormat::kQ4_0) == 2);
static_assert(CodeBytes(WeightFormat::kQ4_1) == 16 && HalfBytes(WeightFormat::kQ4_1) == 4);

/// Thread-safety: a value. Ownership: borrows the device's memory. Errors: none. Units: elements.
struct PackedWeights {
  WeightFormat format = WeightFormat::kBf16;  // kF32, kBf16, or one that IsQuantized
  const void* numbers = nullptr;              // [rows][cols], or codes; on 16 bytes
  const uint16_t* halves = nullptr;           // where it is quantised

  friend bool operator==(const PackedWeights&, const PackedWeights&) = default;
};

/// A matrix that lies at `address`: RowBytes(format, cols) for each of its rows.
inline PackedWeights PackedAt(WeightFormat format, uint64_t address, int64_t rows, int64_t cols) {
  PackedWeights weights = {.format = format, .numbers = reinterpret_cast<const void*>(address)};
  if (!IsQuantized(format)) return weights;
  const int64_t codes = rows * cols / Bf16Run::kNumbers * CodeBytes(format);
  weights.halves = reinterpret_cast<const uint16_t*>(address + static_cast<uint64_t>(codes));
  return weights;
}

/// The matrix from row `first` on.
inline PackedWeights FromRow(PackedWeights weights, int64_t first, int64_t cols) {
  const int64_t blocks = first * cols / Bf16Run::kNumbers;
  const bool quantized = IsQuantized(weights.format);
  const int64_t bytes = quantized ? blocks * CodeBytes(weights.format) : first * RowBytes(weights.format, cols);
  weights.numbers = static_cast<const uint8_t*>(weights.numbers) + bytes;
  if (quantized) weights.halves += blocks * HalfBytes(weights.format) / 2;
  return weights;
}

/// f(std::integral_constant<WeightFormat, format>()) of a format that IsQuantized; on the host.
template <class F>
auto WithQuantized(WeightFormat format, F f) {
  using enum WeightFormat;
  if (format == kQ8_0) return f(std::integral_constant<WeightFormat, kQ8_0>());
  if (format == kQ4_0) return f(std::integral_constant<WeightFormat, kQ4_0>());
  return f(std::integral_constant<WeightFormat, kQ4_1>());
}

}  // namespace swiftcache::engine::backend::cuda
