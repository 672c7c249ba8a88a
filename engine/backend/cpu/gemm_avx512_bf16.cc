// SPDX-License-Identifier: Apache-2.0
// Products of bf16 pairs with AVX-512 BF16. Highway 1.0.3 has no such operation, so these are intrinsics under a target
// attribute: nothing of this file runs, or is inlined elsewhere, on a machine without it.
//
// Why not oneDNN here: one kernel for every row count keeps a row's bits the same, and costs nothing to create. At 512
// rows it is 2 % slower than oneDNN 2.6.3, at one row it reads weights twice as fast (figures in the commit).
#include <immintrin.h>

#include <algorithm>

#include "common/base/units.h"
#include "engine/backend/cpu/kernels.h"

#define SWIFTCACHE_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int kTileRows = 12;  // x 2 vectors = 24 accumulators, 2 of weights, 1 of activations: 27 of 32 registers
constexpr int kThinRows = 3;   // for so few the processor reads ahead by itself as well

// Several tiles take the inputs in stretches that stay in L1, all rows for one before the next, and bring the next one from
// memory meanwhile; the sums of a row wait in between.
constexpr int64_t kCachedPairs = 64;
constexpr int64_t kMaxTiles = 4;  // with more, products no longer wait for memory

using Sums = float[kPanelCols];  // of a row

// What a tile is to do of a stretch.
struct Part {
  bool begins = true, ends = true;  // the first of the inputs, the last
  Sums* sums = nullptr;             // [rows], where it does not begin or end
  int64_t ahead = 0;                // as PanelGemm's
  int tiles = 1, tile = 0;          // which share the asking ahead
};

template <int kRows>
SWIFTCACHE_AVX512_BF16 inline __attribute__((always_inline)) void StoreTile(const PanelGemm& g, int64_t row,
                                                                            __m512 (&acc)[kRows][2]) {
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* c = g.c + (row + m) * g.ldc + v * 16;
      __m512 value = acc[m][v];
      if (g.bias != nullptr) value = _mm512_add_ps(value, _mm512_loadu_ps(g.bias + v * 16));
      if (g.add) value = _mm512_add_ps(value, _mm512_loadu_ps(c));
      _mm512_storeu_ps(c, value);
    }
  }
}

template <int kRows>
SWIFTCACHE_AVX512_BF16 __attribute__((noinline)) void Tile(const PanelGemm& g, int64_t row, const Part& part) {
  const Bf16* a = static_cast<const Bf16*>(g.a) + row * g.lda;
  __m512 acc[kRows][2];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      acc[m][v] = part.begins ? _mm512_setzero_ps() : _mm512_load_ps(part.sums[row + m] + 16 * v);
    }
  }
  int until = part.tile;
  for (const PanelPiece& piece : g.b) {
    const Bf16 *low = static_cast<const Bf16*>(piece.low), *high = static_cast<const Bf16*>(piece.high);
    for (const Bf16* const end = a + 2 * g.k; a != end; a += 2, low += 2 * g.stride, high += 2 * g.stride) {
      if (kRows > kThinRows && part.ahead != 0 && --until < 0) {
        until = part.tiles - 1;
        Prefetch<kPanelCols * 4>(reinterpret_cast<const std::byte*>(low) + part.ahead);
      }
      const __m512bh b0 = (__m512bh)_mm512_loadu_si512(low);
      const __m512bh b1 = (__m512bh)_mm512_loadu_si512(high);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        int32_t pair;
        __builtin_memcpy(&pair, a + m * g.lda, sizeof(pair));
        const __m512bh av = (__m512bh)_mm512_set1_epi32(pair);
        acc[m][0] = _mm512_dpbf16_ps(acc[m][0], av, b0);
        acc[m][1] = _mm512_dpbf16_ps(acc[m][1], av, b1);
      }
    }
  }
  if (part.ends) return StoreTile<kRows>(g, row, acc);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm512_store_ps(part.sums[row + m] + 16 * v, acc[m][v]);
  }
}

// As few tiles as can be, of about the same size.
void Rows(const PanelGemm& g, Part part) {
  using Function = void (*)(const PanelGemm&, int64_t, const Part&);
  static constexpr Function kTiles[kTileRows + 1] = {nullptr, Tile<1>, Tile<2>, Tile<3>,  Tile<4>,  Tile<5>, Tile<6>,
                                                     Tile<7>, Tile<8>, Tile<9>, Tile<10>, Tile<11>, Tile<12>};
  part.tiles = static_cast<int>(CeilDiv(g.rows, int64_t{kTileRows}));
  for (int64_t row = 0; part.tile < part.tiles; ++part.tile) {
    const int64_t rows = CeilDiv(g.rows - row, int64_t{part.tiles - part.tile});
    kTiles[rows](g, row, part);
    row += rows;
  }
}

void Stretches(PanelGemm g) {
  alignas(64) Sums sums[kMaxTiles * kTileRows];
  const int64_t pairs = g.k, ahead = kCachedPairs * g.stride * int64_t{sizeof(uint32_t)};
  PanelPiece piece = g.b[0];
  g.b = {&piece, 1};
  for (int64_t first = 0; first < pairs; first += g.k) {
    g.k = std::min(kCachedPairs, pairs - first);
    Rows(g, {.begins = first == 0, .ends = first + g.k == pairs, .sums = sums, .ahead = ahead});
    g.a = static_cast<const Bf16*>(g.a) + 2 * g.k;
    piece.low = static_cast<const uint32_t*>(piece.low) + g.k * g.stride;
    piece.high = static_cast<const uint32_t*>(piece.high) + g.k * g.stride;
  }
}

}  // namespace

// A row's sums are the same chain of products whatever the tile that computes it.
void GemmAvx512Bf16(const PanelGemm& g) {
  if (g.rows <= kTileRows) return Rows(g, {.ahead = g.ahead});
  if (g.ahead == 0 || g.rows > kMaxTiles * kTileRows) return Rows(g, {});
  Stretches(g);
}

}  // namespace swiftcache::engine::backend::cpu
