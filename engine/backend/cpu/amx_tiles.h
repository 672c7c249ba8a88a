// SPDX-License-Identifier: Apache-2.0
// What the kernels of AMX have in common. They include this within HWY_PUSH_ATTRIBUTES, and before that what it includes.
//
//   ShapeTiles<16>(rows);
//   BeforeTileLoads();
//   _tile_loadd(4, a, stride) ...
//
// Tiles 0 to 3 are sums, [rows][16] f32; 4 and 5 inputs, [rows][kPairs][2] bf16; 6 and 7 weights, [kPairs][16][2] bf16.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "engine/backend/cpu/kernels.h"

namespace swiftcache::engine::backend::cpu {

inline constexpr int64_t kTileRows = 16, kTileCols = 16;
inline constexpr int64_t kMaxTiles = 12;  // of rows, whose sums are kept at once
inline constexpr int64_t kWeightStride = 2 * kPanelCols * sizeof(Bf16), kSumStride = kPanelCols * sizeof(float);

/// Sums of rows, by tile.
using TileSums = float[kTileRows][kPanelCols];

/// GCC does not know that tile loads read memory: between them and what it stores there.
inline void BeforeTileLoads() { std::atomic_signal_fence(std::memory_order_seq_cst); }

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

template <int kPairs>
inline constexpr std::array<TileShapes, kTileRows + 1> kShapesOfRows = [] {
  std::array<TileShapes, kTileRows + 1> all;
  for (int rows = 1; rows <= kTileRows; ++rows) {
    for (int tile = 0; tile < 8; ++tile) all[rows].rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : kPairs);
    all[rows].row_bytes[4] = all[rows].row_bytes[5] = 4 * kPairs;
  }
  return all;
}();

/// To give tiles their shapes takes as long as ten products, to ask for them as long as one.
template <int kPairs>
inline void ShapeTiles(int64_t rows) {
  const TileShapes& wanted = kShapesOfRows<kPairs>[rows];
  TileShapes now;
  asm volatile("sttilecfg %0" : "=m"(now));
  if (std::memcmp(&now, &wanted, sizeof(now)) != 0) _tile_loadconfig(&wanted);
}

/// Of a tile of `rows`. The last one ends with the last row, so that some rows may be in two.
inline int64_t FirstRow(int64_t tile, int64_t rows) {
  return std::min(tile * kTileRows, std::max<int64_t>(0, rows - kTileRows));
}

/// The end of a product: sums of rows [first, first + rows) go to c.
template <class Gemm>
inline void StoreRows(const Gemm& g, int64_t first, int64_t rows, const TileSums* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t tile = row / kTileRows;
    for (int64_t v = 0; v < kPanelCols; v += 16) {
      float* const c = g.c + (first + row) * g.ldc + v;
      __m512 value = _mm512_load_ps(sums[tile][row - FirstRow(tile, rows)] + v);
      if (g.bias != nullptr) value = _mm512_add_ps(value, _mm512_loadu_ps(g.bias + v));
      if (g.add) value = _mm512_add_ps(value, _mm512_loadu_ps(c));
      _mm512_storeu_ps(c, value);
    }
  }
}

}  // namespace swiftcache::engine::backend::cpu
