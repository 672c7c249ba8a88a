// SPDX-License-Identifier: Apache-2.0
// Products with f32 activations, for f32 and for widened bf16 weights.
#include <array>
#include <utility>

#include "common/base/units.h"
#include "engine/backend/cpu/kernels.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/cpu/gemm_kernels.cc"
#include "engine/backend/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace swiftcache::engine::backend::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using U32 = hn::ScalableTag<uint32_t>;

constexpr int kLanes = HWY_MAX_BYTES / 4;
// Rows of a register tile beside two vectors of columns: 24 or 12 accumulators of 32 or 16 registers.
constexpr int kTileRows = HWY_MAX_BYTES == 64 ? 12 : 6;
constexpr int kTileVectors = 2;
// Few rows take twice the columns, to have enough sums in flight.
constexpr int kThinRows = kTileRows / 3;
constexpr int kThinVectors = kPanelCols / kLanes < 4 ? kPanelCols / kLanes : 4;

template <int kRows, int kVectors>
HWY_INLINE void StoreTile(const PanelGemm& g, int64_t row, int64_t col, hn::VFromD<F32> (&acc)[kRows][kVectors]) {
  const F32 d;
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      float* c = g.c + (row + m) * g.ldc + col + v * kLanes;
      auto value = acc[m][v];
      if (g.bias != nullptr) value = hn::Add(value, hn::LoadU(d, g.bias + col + v * kLanes));
      if (g.add) value = hn::Add(value, hn::LoadU(d, c));
      hn::StoreU(value, d, c);
    }
  }
}

// Words [col, col + kVectors * kLanes) of one input after another.
template <typename T, int kVectors>
class PieceWords {
 public:
  HWY_INLINE PieceWords(const PanelPiece& piece, int64_t col, int64_t stride)
      : first_(static_cast<const T*>(col < kHalfCols ? piece.low : piece.high) + col % kHalfCols),
        second_(static_cast<const T*>(piece.high)),
        stride_(stride) {}
  HWY_INLINE auto Load(int v) const {
    const hn::ScalableTag<T> d;
    return v * kLanes < kHalfCols ? hn::LoadU(d, first_ + v * kLanes) : hn::LoadU(d, second_ + v * kLanes - kHalfCols);
  }
  HWY_INLINE void AskAhead(int64_t bytes) const {
    constexpr int64_t kStepBytes = kVectors * kLanes * sizeof(T);
    if (bytes != 0) Prefetch<kStepBytes>(reinterpret_cast<const std::byte*>(first_) + bytes);
  }
  HWY_INLINE void Next() {
    first_ += stride_;
    second_ += stride_;
  }

 private:
  const T *first_, *second_;
  const int64_t stride_;
};

template <int kRows, int kVectors>
HWY_INLINE void TileF32(const PanelGemm& g, int64_t row, int64_t col) {
  const F32 d;
  const float* a = static_cast<const float*>(g.a) + row * g.lda;
  hn::VFromD<F32> acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Zero(d);
  }
  for (const PanelPiece& piece : g.b) {
    PieceWords<float, kVectors> b(piece, col, g.stride);
    for (const float* const end = a + g.k; a != end; ++a, b.Next()) {
      b.AskAhead(g.ahead);
      hn::VFromD<F32> bv[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) bv[v] = b.Load(v);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const auto av = hn::Set(d, a[m * g.lda]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(av, bv[v], acc[m][v]);
      }
    }
  }
  StoreTile<kRows, kVectors>(g, row, col, acc);
}

template <int kRows, int kVectors>
HWY_INLINE void TileBf16Weights(const PanelGemm& g, int64_t row, int64_t col) {
  const F32 d;
  const U32 du;
  const float* a = static_cast<const float*>(g.a) + row * g.lda;
  const auto high_half = hn::Set(du, 0xffff0000u);
  hn::VFromD<F32> acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Zero(d);
  }
  for (const PanelPiece& piece : g.b) {
    PieceWords<uint32_t, kVectors> b(piece, col, g.stride);
    for (const float* const end = a + 2 * g.k; a != end; a += 2, b.Next()) {
      b.AskAhead(g.ahead);
#pragma GCC unroll 16
      for (int odd = 0; odd < 2; ++odd) {
        hn::VFromD<F32> bv[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const auto pair = b.Load(v);
          bv[v] = hn::BitCast(d, odd ? hn::And(pair, high_half) : hn::ShiftLeft<16>(pair));
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const auto av = hn::Set(d, a[m * g.lda + odd]);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(av, bv[v], acc[m][v]);
        }
      }
    }
  }
  StoreTile<kRows, kVectors>(g, row, col, acc);
}

struct F32Tiles {
  template <int kRows, int kVectors>
  static HWY_INLINE void Tile(const PanelGemm& g, int64_t row, int64_t col) {
    TileF32<kRows, kVectors>(g, row, col);
  }
};
struct Bf16WeightTiles {
  template <int kRows, int kVectors>
  static HWY_INLINE void Tile(const PanelGemm& g, int64_t row, int64_t col) {
    TileBf16Weights<kRows, kVectors>(g, row, col);
  }
};

template <class Tiles, int kRows>
HWY_NOINLINE void Columns(const PanelGemm& g, int64_t row) {
  constexpr int kVectors = kRows <= kThinRows ? kThinVectors : kTileVectors;
  for (int64_t col = 0; col < kPanelCols; col += kVectors * kLanes) Tiles::template Tile<kRows, kVectors>(g, row, col);
}

template <class Tiles, int... kRows>
constexpr auto ColumnsOf(std::integer_sequence<int, kRows...>) {
  return std::array{Columns<Tiles, kRows + 1>...};
}

// As few tiles as can be, of about the same size. A row's sums are the same chain of products whatever the tile that
// computes it.
template <class Tiles>
HWY_INLINE void Panel(const PanelGemm& g) {
  static constexpr auto kTiles = ColumnsOf<Tiles>(std::make_integer_sequence<int, kTileRows>());
  for (int64_t row = 0; row < g.rows;) {
    const int64_t left = g.rows - row, rows = CeilDiv(left, CeilDiv(left, int64_t{kTileRows}));
    kTiles[rows - 1](g, row);
    row += rows;
  }
}

void GemmF32(const PanelGemm& g) { Panel<F32Tiles>(g); }
void GemmBf16Weights(const PanelGemm& g) { Panel<Bf16WeightTiles>(g); }

void SetGemm(Kernels& kernels) {
  kernels.gemm_f32 = GemmF32;
  kernels.gemm_bf16_weights = GemmBf16Weights;
}

}  // namespace HWY_NAMESPACE
}  // namespace swiftcache::engine::backend::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace swiftcache::engine::backend::cpu {
void SetGemmKernels(Isa isa, Kernels& kernels) { SWIFTCACHE_DISPATCH(isa, SetGemm, kernels); }
}  // namespace swiftcache::engine::backend::cpu
#endif
