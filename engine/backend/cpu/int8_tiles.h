// SPDX-License-Identifier: Apache-2.0
// Products of int8 rows and quantised panels, for vectors that an instruction set's own file brings. It includes this
// within HWY_PUSH_ATTRIBUTES, so that what is instantiated there has its instructions.
//
// Vectors<kBits>, kBits being those of a code, has
//   Float, kLanes, kRows   f32 lanes, how many, and how many rows a tile has at most
//   kQuadBytes             codes of a quad of inputs for all outputs
//   kUnpackRows            from so many rows on codes of less than 8 bits are put together once for all
//   Weights                codes of a quad of inputs for kLanes outputs
//   Load(quad, half, step, zero)   outputs half * 16 + step * kLanes onwards
//   StoreCodes(codes, p)   Weights of less than 8 bits; OfBytes loads them again, as it does 8 bits
//   Vector, Broadcast(inputs)   four codes, to all lanes
//   Sum                    integer sums of kLanes outputs: Begin(start), Dot(sum, weights, inputs), End(sum, start)
//   kQuads                 how many Weights and Vectors Dot takes
//   Halves(p), Bytes(p)    kLanes f16 or int8, as f32
//   Set, Zero, Mul, MulAdd, Add, LoadFloats, StoreFloats   f32 arithmetic
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"

namespace swiftcache::engine::backend::cpu {

// Scales or minima of kLanes outputs. super: what those of the super-block are multiplied by, where there is one.
template <class V, class Form>
__attribute__((always_inline)) inline typename V::Float Scales(const std::byte* p, const std::byte* super) {
  if constexpr (Form::kScaleBytes == 1) return V::Mul(V::Halves(super), V::Bytes(p));
  return V::Halves(p);
}

// Codes of less than 8 bits take a while to put together, and scales to convert: from kUnpackRows on that is done once.
// QuantizedGemm::scratch then has codes as those of 8 bits lie in a panel, and behind them f32 [32] of scales, and of minima
// where there are some, for each block.
template <class V>
struct Unpacked : V {
  static constexpr int64_t kQuadBytes = V::OfBytes::kQuadBytes;
  static __attribute__((always_inline)) auto Load(const std::byte* quad, int half, int step, int zero) {
    return V::OfBytes::Load(quad, half, step, zero);
  }
};

template <class Form>
inline constexpr int64_t kScalesOfBlock = Form::kMinima ? 2 * kPanelCols : kPanelCols;

__attribute__((always_inline)) inline float* UnpackedScales(const QuantizedGemm& g) {
  return reinterpret_cast<float*>(static_cast<std::byte*>(g.scratch) + g.blocks * g.layout.inputs * kPanelCols);
}

template <class V, class Form>
__attribute__((noinline)) void Unpack(const QuantizedGemm& g) {
  auto* out = static_cast<std::byte*>(g.scratch);
  float* scales = UnpackedScales(g);
  const std::byte *b = g.b, *super = nullptr;
  for (int64_t block = 0; block < g.blocks; ++block) {
    if constexpr (Form::kSuperBlocks > 0) {
      if (block % Form::kSuperBlocks == 0) super = std::exchange(b, b + Form::kSuperBytes);
    }
    for (int i = 0; i < Form::kPairs / 2; ++i, b += V::kQuadBytes) {
      Prefetch<V::kQuadBytes>(b + kAhead);
      for (int half = 0; half < 2; ++half) {
        for (int step = 0; step < 16 / V::kLanes; ++step, out += 4 * V::kLanes) {
          V::StoreCodes(V::Load(b, half, step, 0), out);
        }
      }
    }
    for (int64_t i = 0; i < kScalesOfBlock<Form>; i += V::kLanes, b += V::kLanes * Form::kScaleBytes) {
      V::StoreFloats(Scales<V, Form>(b, super + 2 * i), scales + i);
    }
    scales += kScalesOfBlock<Form>;
  }
}

// value: of kLanes outputs from `output` on.
template <class V>
__attribute__((always_inline)) inline void Put(const QuantizedGemm& g, typename V::Float value, int64_t row,
                                               int output) {
  float* const c = g.c + row * g.ldc + output;
  if (g.bias != nullptr) value = V::Add(value, V::LoadFloats(g.bias + output));
  if (g.add) value = V::Add(value, V::LoadFloats(c));
  V::StoreFloats(value, c);
}

// For kRows rows and all outputs of a panel. Of an output: group after group of inputs, the exact sum of the products of
// codes as f32, times the product of both scales, is added by a fused multiply-add; then, likewise, minimum times sum of
// inputs. Where a group has two blocks, their sums are first added up with the scales of the weights. That is the same chain
// whatever the tile and the instruction set.
template <class V, class Form, int kRows>
__attribute__((noinline)) void Int8Tile(const QuantizedGemm& g, int64_t row) {
  constexpr int kBlockQuads = Form::kPairs / 2, kParts = kInt8Inputs / 4 / kBlockQuads;
  constexpr int64_t kQuadBytes = V::kQuadBytes, kCodeBytes = 16 * Form::kBits * kBlockQuads;
  constexpr bool kUnpacked = kQuadBytes != 16 * Form::kBits;
  constexpr int kSteps = 16 / V::kLanes, kSums = 2 * kSteps;
  const auto* const rows = static_cast<const Int8Group*>(g.a) + row * g.lda;
  const int zero = g.layout.zero;
  const int64_t block_bytes = g.layout.block_bytes();
  const auto output = [](int i) { return 16 * (i % 2) + i / 2 * V::kLanes; };  // of sum i, the first
  const Int8Group* a = rows;
  const std::byte *b = g.b, *super = nullptr, *unpacked = static_cast<const std::byte*>(g.scratch);
  const float* scales = UnpackedScales(g);
  typename V::Float total[kRows][kSums], of_group[kRows][kSums];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) total[m][i] = V::Zero();
  }
  for (int64_t group = 0; group < g.blocks / kParts; ++group, ++a) {
    if constexpr (Form::kSuperBlocks > 0) {
      if (group % (kSuperBlockInputs / kInt8Inputs) == 0) super = std::exchange(b, b + Form::kSuperBytes);
    }
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part, b += block_bytes) {
      const std::byte* const codes = kUnpacked ? std::exchange(unpacked, unpacked + kQuadBytes * kBlockQuads) : b;
      typename V::Sum sum[kRows][kSums];
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
        for (int i = 0; i < kSums; ++i) sum[m][i] = V::Begin(a[m * g.lda].starts + part);
      }
#pragma GCC unroll 8
      for (int quad = 0; quad < kBlockQuads; quad += V::kQuads) {
#pragma GCC unroll 2
        for (int step = 0; step < kSteps; ++step) {
          typename V::Weights low[V::kQuads], high[V::kQuads];
#pragma GCC unroll 2
          for (int i = 0; i < V::kQuads; ++i) {
            const std::byte* const at = codes + (quad + i) * kQuadBytes;
            if (step == 0 && !kUnpacked) Prefetch<kQuadBytes>(at + kAhead);
            low[i] = V::Load(at, 0, step, zero);
            high[i] = V::Load(at, 1, step, zero);
          }
#pragma GCC unroll 16
          for (int m = 0; m < kRows; ++m) {
            const int8_t* const of_row = a[m * g.lda].codes + 4 * (part * kBlockQuads + quad);
            typename V::Vector inputs[V::kQuads];
#pragma GCC unroll 2
            for (int i = 0; i < V::kQuads; ++i) inputs[i] = V::Broadcast(of_row + 4 * i);
            sum[m][2 * step] = V::Dot(sum[m][2 * step], low, inputs);
            sum[m][2 * step + 1] = V::Dot(sum[m][2 * step + 1], high, inputs);
          }
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i) {
        typename V::Float scale, minimum;
        if constexpr (kUnpacked) {
          scale = V::LoadFloats(scales + output(i));
          if constexpr (Form::kMinima) minimum = V::LoadFloats(scales + kPanelCols + output(i));
        } else {
          const std::byte* const at = b + kCodeBytes + output(i) * Form::kScaleBytes;
          const std::byte* const of_super = super + 2 * output(i);
          scale = Scales<V, Form>(at, of_super);
          if constexpr (Form::kMinima) {
            minimum = Scales<V, Form>(at + 32 * Form::kScaleBytes, of_super + kSuperBlockBytes);
          }
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const Int8Group& of_row = a[m * g.lda];
          const auto exact = V::End(sum[m][i], of_row.starts + part);
          if constexpr (kParts == 1) {
            total[m][i] = V::MulAdd(exact, V::Mul(scale, V::Set(of_row.scale)), total[m][i]);
          } else {
            of_group[m][i] = part == 0 ? V::Mul(exact, scale) : V::MulAdd(exact, scale, of_group[m][i]);
            if (part == kParts - 1) total[m][i] = V::MulAdd(of_group[m][i], V::Set(of_row.scale), total[m][i]);
          }
          if constexpr (Form::kMinima) total[m][i] = V::MulAdd(minimum, V::Set(of_row.sum), total[m][i]);
        }
      }
      if constexpr (kUnpacked) scales += kScalesOfBlock<Form>;
    }
  }
  if constexpr (kRows % 2 == 0) {
    if (g.pairs) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; m += 2) {
#pragma GCC unroll 4
        for (int i = 0; i < kSums; ++i) {
          Put<V>(g, V::Add(total[m][i], total[m + 1][i]), (row + m) / 2, output(i));
        }
      }
      return;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) Put<V>(g, total[m][i], row + m, output(i));
  }
}

// An even number of rows has tiles of even numbers alone, so that none parts a pair.
template <class V, class Form, int kRows>
void TileRows(const QuantizedGemm& g, int64_t row) {
  if constexpr (kRows > 0) {
    if (g.rows - row < kRows) return TileRows<V, Form, kRows - 1>(g, row);
    for (; g.rows - row >= kRows; row += kRows) Int8Tile<V, Form, kRows>(g, row);
    TileRows<V, Form, kRows - 1>(g, row);
  }
}

// V is a type, not a template: GCC 12 shows the linker what is made of a template of an unnamed namespace, and of
// a name that several files show the linker takes one file's, with its instructions, for all.
template <class V, class Form>
void Int8Product(const QuantizedGemm& g) {
  static_assert(V::kRows % 2 == 0);
  if constexpr (Form::kBits != 8 && V::kUnpackRows != kNeverUnpack) {
    if (g.rows >= V::kUnpackRows) {
      Unpack<V, Form>(g);
      return TileRows<Unpacked<V>, Form, V::kRows>(g, 0);
    }
  }
  TileRows<V, Form, V::kRows>(g, 0);
}

}  // namespace swiftcache::engine::backend::cpu
