// SPDX-License-Identifier: Apache-2.0
// Products of bf16 rows and quantised panels with AVX-512 BF16: codes become bf16 in registers, where they are exact, a
// pair of inputs at a time. As gemm_avx512_bf16.cc nothing of this file runs on a machine without it.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "engine/backend/cpu/bf16_codes.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int kTileRows = 8;  // x 2 vectors = 16 accumulators of a block; most of the sums of blocks stay in registers
// From so many rows on it costs less to unpack a panel once; codes of 4 and 5 bits take few operations.
template <int kBits>
constexpr int64_t kUnpackRows = kBits <= 5 ? 128 : 32;

// Codes that are bf16 already: [pair][outputs 0..15, 16..31][2].
class Unpacked {
 public:
  SWIFTCACHE_INLINE explicit Unpacked(int) {}
  static constexpr int64_t kPairBytes = kUnpackedPairBytes;
  SWIFTCACHE_INLINE Bf16Weights Load(const std::byte* pair) const {
    return {(__m512bh)_mm512_load_si512(pair), (__m512bh)_mm512_load_si512(pair + 64)};
  }
};

template <class Source, class Form, int kRows>
SWIFTCACHE_AVX512_BF16 __attribute__((noinline)) void Tile(const QuantizedGemm& g, int64_t row) {
  const Source codes(g.layout.zero);
  const Bf16* a = static_cast<const Bf16*>(g.a) + row * g.lda;
  const bool unpacked = std::is_same_v<Source, Unpacked>;
  const std::byte* b = unpacked ? static_cast<const std::byte*>(g.scratch) : g.b;
  const int64_t code_bytes = g.layout.code_bytes(), block_bytes = g.layout.block_bytes();
  const std::byte *at = g.b, *super = nullptr;  // the block, what stands before its super-block
  __m512 total[kRows][2];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) total[m][0] = total[m][1] = _mm512_setzero_ps();
  for (int64_t block = 0; block < g.blocks; ++block, at += block_bytes) {
    if constexpr (Form::kSuperBlocks > 0) {
      if (block % Form::kSuperBlocks == 0) super = std::exchange(at, at + Form::kSuperBytes);
    }
    const std::byte* const scales = at + code_bytes;
    if (!unpacked) b = at;
    __m512 acc[kRows][2];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m][0] = acc[m][1] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int pair = 0; pair < Form::kPairs; ++pair, b += Source::kPairBytes, a += 2) {
      if (!unpacked) __builtin_prefetch(b + kAhead);
      const Bf16Weights weights = codes.Load(b);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        int32_t inputs;
        __builtin_memcpy(&inputs, a + m * g.lda, sizeof(inputs));
        const __m512bh av = (__m512bh)_mm512_set1_epi32(inputs);
        acc[m][0] = _mm512_dpbf16_ps(acc[m][0], av, weights.low);
        acc[m][1] = _mm512_dpbf16_ps(acc[m][1], av, weights.high);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512 scale = LoadScales<Form>(scales, super, v);
      const __m512 minimum =
          Form::kMinima ? LoadScales<Form>(scales + 32 * Form::kScaleBytes, super + kSuperBlockBytes, v) : scale;
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        __m512 sum = _mm512_fmadd_ps(scale, acc[m][v], total[m][v]);
        if constexpr (Form::kMinima) {
          sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(g.sums[(row + m) * g.ld_sums + block]), sum);
        }
        total[m][v] = sum;
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* c = g.c + (row + m) * g.ldc + v * 16;
      __m512 value = total[m][v];
      if (g.bias != nullptr) value = _mm512_add_ps(value, _mm512_loadu_ps(g.bias + v * 16));
      if (g.add) value = _mm512_add_ps(value, _mm512_loadu_ps(c));
      _mm512_storeu_ps(c, value);
    }
  }
}

// A row's sums are the same chain of operations whatever the tile that computes it.
template <class Source, class Form>
void Rows(const QuantizedGemm& g) {
  using Function = void (*)(const QuantizedGemm&, int64_t);
  static constexpr Function kTiles[kTileRows + 1] = {nullptr,
                                                     Tile<Source, Form, 1>,
                                                     Tile<Source, Form, 2>,
                                                     Tile<Source, Form, 3>,
                                                     Tile<Source, Form, 4>,
                                                     Tile<Source, Form, 5>,
                                                     Tile<Source, Form, 6>,
                                                     Tile<Source, Form, 7>,
                                                     Tile<Source, Form, 8>};
  for (int64_t row = 0; row < g.rows; row += kTileRows) {
    kTiles[std::min<int64_t>(kTileRows, g.rows - row)](g, row);
  }
}

}  // namespace

void QuantizedAvx512Bf16(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() {
    if (g.rows < kUnpackRows<Form::kBits>) return Rows<Bf16Codes<Form::kBits>, Form>(g);
    UnpackBlocks<Form::kBits>(g, 0, g.blocks, g.scratch);
    Rows<Unpacked, typename Form::OfAnyBits>(g);
  });
}

}  // namespace swiftcache::engine::backend::cpu
