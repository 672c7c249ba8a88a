// SPDX-License-Identifier: Apache-2.0
// Products of bf16 rows and quantised panels with AMX. As with AVX-512 BF16 codes become bf16, where they are exact, and
// what a block sums up is scaled; a block is one tile product, whose order of sums is AMX's own (gemm_amx.cc).
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/base/units.h"
#include "engine/backend/cpu/bf16_codes.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#include "engine/backend/cpu/amx_tiles.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// Whose weights are unpacked at once: fewer cost more, more let memory wait meanwhile.
constexpr int64_t kCachedInputs = 128;

// Consecutive blocks of a panel.
template <class Form>
struct Blocks {
  static constexpr int64_t kInputs = 2 * Form::kPairs, kMost = kCachedInputs / kInputs;
  alignas(64) Bf16 weights[kMost][Form::kPairs][2 * kPanelCols];
  alignas(64) float scales[kMost][kPanelCols], minima[kMost][kPanelCols];
  int64_t count = 0;
};

template <class Form>
void Unpack(const QuantizedGemm& g, int64_t first, Blocks<Form>& blocks) {
  blocks.count = std::min(blocks.kMost, g.blocks - first);
  UnpackBlocks<Form::kBits>(g, first, blocks.count, blocks.weights);
  for (int64_t i = 0; i < blocks.count; ++i) {
    const std::byte* const scales = g.b + g.layout.block_at(first + i) + g.layout.code_bytes();
    const std::byte* super = nullptr;
    if constexpr (Form::kSuperBlocks > 0) {
      super = g.b + g.layout.block_at((first + i) / Form::kSuperBlocks * Form::kSuperBlocks) - Form::kSuperBytes;
    }
    for (int half = 0; half < 2; ++half) {
      _mm512_store_ps(blocks.scales[i] + 16 * half, LoadScales<Form>(scales, super, half));
      if constexpr (Form::kMinima) {
        const __m512 minima = LoadScales<Form>(scales + 32 * Form::kScaleBytes, super + kSuperBlockBytes, half);
        _mm512_store_ps(blocks.minima[i] + 16 * half, minima);
      }
    }
  }
}

// What one block sums up, of a tile's rows.
HWY_INLINE void SumBlock(const Bf16* a, int64_t stride, const Bf16* weights, TileSums& sums) {
  _tile_loadd(4, a, stride);
  _tile_loadd(6, weights, kWeightStride);
  _tile_loadd(7, weights + 2 * kTileCols, kWeightStride);
  _tile_zero(0);
  _tile_zero(1);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_stored(0, sums[0], kSumStride);
  _tile_stored(1, sums[0] + kTileCols, kSumStride);
}

// Adds scaled sums to `totals`, for `rows` rows of a tile. of_inputs: f32 [rows][ld], by block: the sums of inputs.
template <class Form>
void AddBlocks(const Bf16* a, int64_t stride, int64_t rows, const Blocks<Form>& blocks, const float* of_inputs,
               int64_t ld, TileSums& totals) {
  alignas(64) TileSums sums[2];  // of this block and of the next
  SumBlock(a, stride, blocks.weights[0][0], sums[0]);
  for (int64_t i = 0; i < blocks.count; ++i) {
    if (i + 1 < blocks.count) {
      SumBlock(a + (i + 1) * blocks.kInputs, stride, blocks.weights[i + 1][0], sums[(i + 1) % 2]);
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t v = 0; v < kPanelCols; v += 16) {
        __m512 total = _mm512_load_ps(totals[row] + v);
        total = _mm512_fmadd_ps(_mm512_load_ps(blocks.scales[i] + v), _mm512_load_ps(sums[i % 2][row] + v), total);
        if constexpr (Form::kMinima) {
          const __m512 of_input = _mm512_set1_ps(of_inputs[row * ld + i]);
          total = _mm512_fmadd_ps(_mm512_load_ps(blocks.minima[i] + v), of_input, total);
        }
        _mm512_store_ps(totals[row] + v, total);
      }
    }
  }
}

// Rows [first_row, first_row + rows), of at most kMaxTiles.
template <class Form>
void Rows(const QuantizedGemm& g, int64_t first_row, int64_t rows) {
  alignas(64) TileSums totals[kMaxTiles];
  Blocks<Form> blocks;
  const int64_t tiles = CeilDiv(rows, kTileRows), of_tile = std::min(rows, kTileRows);
  std::memset(totals, 0, tiles * sizeof(TileSums));
  ShapeTiles<Form::kPairs>(of_tile);
  for (int64_t first = 0; first < g.blocks; first += blocks.kMost) {
    Unpack(g, first, blocks);
    BeforeTileLoads();
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = first_row + FirstRow(tile, rows);
      const Bf16* const a = static_cast<const Bf16*>(g.a) + row * g.lda + first * blocks.kInputs;
      AddBlocks(a, g.lda * int64_t{sizeof(Bf16)}, of_tile, blocks, g.sums + row * g.ld_sums + first, g.ld_sums,
                totals[tile]);
    }
  }
  StoreRows(g, first_row, rows, totals);
}

}  // namespace

void QuantizedAmx(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() {
    for (int64_t row = 0; row < g.rows; row += kMaxTiles * kTileRows) {
      Rows<Form>(g, row, std::min(kMaxTiles * kTileRows, g.rows - row));
    }
  });
}

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
