// SPDX-License-Identifier: Apache-2.0
// Products of bf16 pairs with AMX. A tile product takes 32 inputs: the products of those at even places and of those at
// odd ones are summed up apart, and both are then added to the sum so far. That is the same chain whatever the number of
// rows, but another one than that of gemm_avx512_bf16.cc.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/base/units.h"
#include "engine/backend/cpu/kernels.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#include "engine/backend/cpu/amx_tiles.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kStepPairs = 16;  // of inputs, in a tile product
// Whose weights, 20 KiB, stay in L1 while all rows pass by, two tiles and as many bytes at a time.
constexpr int64_t kCachedSteps = 10;

// Weights of some steps, one after another: pairs are `stride` bytes apart.
struct Weights {
  const Bf16 *low, *high;
  int64_t stride;
};

template <int kTiles>
HWY_INLINE void Step(const Bf16* a0, const Bf16* a1, int64_t stride, const Weights& b) {
  _tile_loadd(6, b.low, b.stride);
  _tile_loadd(4, a0, stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b.high, b.stride);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTiles == 2) {
    _tile_loadd(5, a1, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <int kTiles>
HWY_INLINE void BeginSums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTiles == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <int kTiles>
HWY_INLINE void LoadSums(const TileSums* sums) {
  _tile_loadd(0, sums[0][0], kSumStride);
  _tile_loadd(1, sums[0][0] + kTileCols, kSumStride);
  if constexpr (kTiles == 2) {
    _tile_loadd(2, sums[1][0], kSumStride);
    _tile_loadd(3, sums[1][0] + kTileCols, kSumStride);
  }
}

template <int kTiles>
HWY_INLINE void StoreSums(TileSums* sums) {
  _tile_stored(0, sums[0][0], kSumStride);
  _tile_stored(1, sums[0][0] + kTileCols, kSumStride);
  if constexpr (kTiles == 2) {
    _tile_stored(2, sums[1][0], kSumStride);
    _tile_stored(3, sums[1][0] + kTileCols, kSumStride);
  }
}

// Adds the products of some steps to the sums of kTiles tiles, whose rows begin at a0 and a1; or begins these.
template <int kTiles>
HWY_NOINLINE void AddSteps(const Bf16* a0, const Bf16* a1, int64_t stride, Weights b, int64_t steps, bool begin,
                           TileSums* sums) {
  begin ? BeginSums<kTiles>() : LoadSums<kTiles>(sums);
  const int64_t step = kStepPairs * b.stride / int64_t{sizeof(Bf16)};
  for (const Bf16* const end = b.low + steps * step; b.low != end; b.low += step, b.high += step) {
    Step<kTiles>(a0, a1, stride, b);
    a0 += 2 * kStepPairs;
    a1 += 2 * kStepPairs;
  }
  StoreSums<kTiles>(sums);
}

// `count` steps from pair `first` on. Where a piece ends within a step, or has no more pairs, they are put together in
// `filled`, with zeroes beyond the last one, as rows have there.
Weights StepsOf(const PanelGemm& g, int64_t first, int64_t count, Bf16* filled) {
  const auto at = [&g](const void* half, int64_t k) { return static_cast<const Bf16*>(half) + k * 2 * g.stride; };
  if (g.b.size() == 1 && first + count * kStepPairs <= g.k) {
    return {at(g.b[0].low, first), at(g.b[0].high, first), g.stride * 2 * int64_t{sizeof(Bf16)}};
  }
  const int64_t pairs = g.k * static_cast<int64_t>(g.b.size());
  Bf16* to = filled;
  for (int64_t k = first; k < first + count * kStepPairs; ++k, to += 2 * kPanelCols) {
    if (k >= pairs) {
      std::fill_n(to, 2 * kPanelCols, Bf16{});
      continue;
    }
    const PanelPiece& piece = g.b[k / g.k];
    std::copy_n(at(piece.low, k % g.k), 2 * kHalfCols, to);
    std::copy_n(at(piece.high, k % g.k), 2 * kHalfCols, to + 2 * kHalfCols);
  }
  return {filled, filled + 2 * kHalfCols, kWeightStride};
}

// Rows [first, first + rows), of at most kMaxTiles.
void Rows(const PanelGemm& g, int64_t first_row, int64_t rows) {
  alignas(64) TileSums sums[kMaxTiles];
  alignas(64) Bf16 filled[kCachedSteps * kStepPairs * 2 * kPanelCols];
  const int64_t tiles = CeilDiv(rows, kTileRows), stride = g.lda * int64_t{sizeof(Bf16)};
  const int64_t steps = CeilDiv(g.k * static_cast<int64_t>(g.b.size()), kStepPairs);
  const int64_t at_once = CeilDiv(steps, CeilDiv(steps, kCachedSteps));
  ShapeTiles<kStepPairs>(std::min(rows, kTileRows));
  for (int64_t first = 0; first < steps; first += at_once) {
    const int64_t count = std::min(at_once, steps - first);
    const Weights b = StepsOf(g, first * kStepPairs, count, filled);
    BeforeTileLoads();
    const auto a = [&](int64_t tile) {
      return static_cast<const Bf16*>(g.a) + (first_row + FirstRow(tile, rows)) * g.lda + first * 2 * kStepPairs;
    };
    int64_t tile = 0;
    for (; tile + 1 < tiles; tile += 2) {
      AddSteps<2>(a(tile), a(tile + 1), stride, b, count, first == 0, sums + tile);
    }
    if (tile < tiles) AddSteps<1>(a(tile), a(tile), stride, b, count, first == 0, sums + tile);
  }
  StoreRows(g, first_row, rows, sums);
}

}  // namespace

void GemmAmx(const PanelGemm& g) {
  for (int64_t row = 0; row < g.rows; row += kMaxTiles * kTileRows) {
    Rows(g, row, std::min(kMaxTiles * kTileRows, g.rows - row));
  }
}

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
