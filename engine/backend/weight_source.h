// SPDX-License-Identifier: Apache-2.0
// Weights as their file stores them: what a loader hands to a backend, which makes of them what it computes with.
//
//   constexpr WeightFormat format = WeightFormat::kQ4_1;
//   const WeightSource up{.format = format, .data = bytes, .rows = 1536, .cols = 576, .row_bytes = RowBytes(format, 576)};
//   ASSIGN_OR_RETURN(std::unique_ptr<Matrix> matrix, backend.PackMatrix({&up, 1}, Exactness::kUsual));
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace swiftcache::engine::backend {

/// Element formats. The quantised ones are GGML's blocks; their layouts stand in weight_blocks.h.
enum class WeightFormat { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

/// A format and its smallest run of elements. Units: elements and bytes.
struct WeightBlock {
  WeightFormat format = WeightFormat::kF32;
  const char* name = "";
  int64_t elements = 0;
  int64_t bytes = 0;
};

/// In the order of the enumerators. Bytes: scales and minima first, then what holds the elements.
inline constexpr WeightBlock kWeightBlocks[] = {
    {WeightFormat::kF32, "F32", 1, 4},
    {WeightFormat::kF16, "F16", 1, 2},
    {WeightFormat::kBf16, "BF16", 1, 2},
    {WeightFormat::kQ8_0, "Q8_0", 32, 2 + 32},
    {WeightFormat::kQ4_0, "Q4_0", 32, 2 + 32 / 2},
    {WeightFormat::kQ4_1, "Q4_1", 32, 2 + 2 + 32 / 2},
    {WeightFormat::kQ5_0, "Q5_0", 32, 2 + 32 / 8 + 32 / 2},
    {WeightFormat::kQ5_1, "Q5_1", 32, 2 + 2 + 32 / 8 + 32 / 2},
    {WeightFormat::kQ4_K, "Q4_K", 256, 2 + 2 + 12 + 256 / 2},
    {WeightFormat::kQ5_K, "Q5_K", 256, 2 + 2 + 12 + 256 / 8 + 256 / 2},
    {WeightFormat::kQ6_K, "Q6_K", 256, 2 + 16 + 256 / 4 + 256 / 2},
};

constexpr const WeightBlock& BlockOf(WeightFormat format) { return kWeightBlocks[static_cast<size_t>(format)]; }
constexpr const char* NameOf(WeightFormat format) { return BlockOf(format).name; }

/// Bytes of `cols` elements. REQUIRES: cols is a multiple of the block's elements.
constexpr int64_t RowBytes(WeightFormat format, int64_t cols) {
  return cols / BlockOf(format).elements * BlockOf(format).bytes;
}

constexpr bool WeightBlocksAreInOrder() {
  for (size_t i = 0; i < std::size(kWeightBlocks); ++i) {
    if (kWeightBlocks[i].format != static_cast<WeightFormat>(i)) return false;
  }
  return std::size(kWeightBlocks) == static_cast<size_t>(WeightFormat::kQ6_K) + 1;
}
static_assert(WeightBlocksAreInOrder());
// GGML's sizes of a block.
static_assert(RowBytes(WeightFormat::kQ8_0, 32) == 34);
static_assert(RowBytes(WeightFormat::kQ4_0, 32) == 18 && RowBytes(WeightFormat::kQ4_1, 32) == 20);
static_assert(RowBytes(WeightFormat::kQ5_0, 32) == 22 && RowBytes(WeightFormat::kQ5_1, 32) == 24);
static_assert(RowBytes(WeightFormat::kQ4_K, 256) == 144 && RowBytes(WeightFormat::kQ5_K, 256) == 176);
static_assert(RowBytes(WeightFormat::kQ6_K, 256) == 210);

/// Which stored row is row r of the matrix.
enum class RowOrder {
  kPlain,      // r
  kRopePairs,  // q and k in GGUF's llama files: a head's rows 0, d/2, 1, d/2 + 1, ... (rope's pairs) lie in this order
};

/// A matrix [rows = outputs][cols = inputs], or a vector [1][cols], row after row.
/// Thread-safety: immutable. Ownership: borrows `data` from the file's mapping. Errors: none; who made it has checked
/// that every row lies within the file and is whole blocks. Units: elements; row_bytes bytes.
struct WeightSource {
  WeightFormat format = WeightFormat::kF32;
  const std::byte* data = nullptr;  // [rows][row_bytes], at any alignment
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_bytes = 0;
  RowOrder row_order = RowOrder::kPlain;
  int64_t head_dim = 0;  // d of kRopePairs: even, divides rows

  /// Stored bytes of row r of the matrix. REQUIRES: 0 <= r < rows.
  const std::byte* Row(int64_t r) const { return data + StoredRow(r) * row_bytes; }
  int64_t StoredRow(int64_t r) const {
    if (row_order == RowOrder::kPlain) return r;
    const int64_t in_head = r % head_dim, half = head_dim / 2;
    return r - in_head + in_head % half * 2 + in_head / half;
  }
};

}  // namespace swiftcache::engine::backend
