// SPDX-License-Identifier: Apache-2.0
// Products of bf16 rows and quantised panels with AVX-512 BF16: codes become bf16 in registers, where they are exact, a
// pair of inputs at a time. As gemm_avx512_bf16.cc nothing of this file runs on a machine without it.
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"

#define SWIFTCACHE_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define SWIFTCACHE_INLINE SWIFTCACHE_AVX512_BF16 inline __attribute__((always_inline))

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int kTileRows = 8;  // x 2 vectors = 16 accumulators of a block; most of the sums of blocks stay in registers
constexpr int64_t kUnpackRows = 4 * kTileRows;  // from which on it costs less to unpack a panel once

// The weights of a pair of inputs: [outputs 0..15][2] and [outputs 16..31][2].
struct Weights {
  __m512bh low, high;
};

// Codes of 4 bits, looked up: word i of the table is i % 16 - zero.
class FourBits {
 public:
  SWIFTCACHE_INLINE explicit FourBits(int zero) {
    alignas(64) Bf16 table[32];
    for (int i = 0; i < 32; ++i) table[i] = ToBf16(static_cast<float>(i % 16 - zero));
    table_ = _mm512_load_si512(table);
  }
  static constexpr int64_t kPairBytes = 32;
  SWIFTCACHE_INLINE Weights Load(const std::byte* pair) const {
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair)));
    return {(__m512bh)_mm512_permutexvar_epi16(words, table_),  // which looks at the lowest 5 bits
            (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table_)};
  }

 private:
  __m512i table_;
};

class EightBits {
 public:
  SWIFTCACHE_INLINE explicit EightBits(int) {}
  static constexpr int64_t kPairBytes = 64;
  SWIFTCACHE_INLINE Weights Load(const std::byte* pair) const {
    return {_mm512_cvtne2ps_pbh(Widen(pair + 16), Widen(pair)),
            _mm512_cvtne2ps_pbh(Widen(pair + 48), Widen(pair + 32))};
  }

 private:
  SWIFTCACHE_INLINE static __m512 Widen(const std::byte* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  }
};

// Codes that are bf16 already: [pair][outputs 0..15, 16..31][2].
class Unpacked {
 public:
  SWIFTCACHE_INLINE explicit Unpacked(int) {}
  static constexpr int64_t kPairBytes = 128;
  SWIFTCACHE_INLINE Weights Load(const std::byte* pair) const {
    return {(__m512bh)_mm512_load_si512(pair), (__m512bh)_mm512_load_si512(pair + 64)};
  }
};

// Scales or minima of 16 outputs, the half-th of the panel's.
template <int kBytes>
SWIFTCACHE_INLINE __m512 LoadScales(const std::byte* p, int half) {
  if constexpr (kBytes == 4) return _mm512_loadu_ps(p + 64 * half);
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * half)));
}

template <class Codes, class Form, int kRows>
SWIFTCACHE_AVX512_BF16 __attribute__((noinline)) void Tile(const QuantizedGemm& g, int64_t row) {
  const Codes codes(g.layout.zero);
  const Bf16* a = static_cast<const Bf16*>(g.a) + row * g.lda;
  const bool unpacked = std::is_same_v<Codes, Unpacked>;
  const std::byte* b = unpacked ? static_cast<const std::byte*>(g.scratch) : g.b;
  const int64_t code_bytes = g.layout.code_bytes(), block_bytes = g.layout.block_bytes();
  const std::byte* scales = g.b + code_bytes;
  __m512 total[kRows][2];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) total[m][0] = total[m][1] = _mm512_setzero_ps();
  for (int64_t block = 0; block < g.blocks; ++block, scales += block_bytes) {
    if (!unpacked) b = scales - code_bytes;
    __m512 acc[kRows][2];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m][0] = acc[m][1] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int pair = 0; pair < Form::kPairs; ++pair, b += Codes::kPairBytes, a += 2) {
      const Weights weights = codes.Load(b);
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
      const __m512 scale = LoadScales<Form::kScaleBytes>(scales, v);
      const __m512 minimum = Form::kMinima ? LoadScales<Form::kScaleBytes>(scales + 32 * Form::kScaleBytes, v) : scale;
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
template <class Codes>
SWIFTCACHE_AVX512_BF16 void Unpack(const QuantizedGemm& g) {
  const Codes codes(g.layout.zero);
  auto* out = static_cast<std::byte*>(g.scratch);
  for (int64_t block = 0; block < g.blocks; ++block) {
    const std::byte* b = g.b + block * g.layout.block_bytes();
    for (int pair = 0; pair < g.layout.inputs / 2; ++pair, b += Codes::kPairBytes, out += Unpacked::kPairBytes) {
      const Weights weights = codes.Load(b);
      _mm512_store_si512(out, (__m512i)weights.low);
      _mm512_store_si512(out + 64, (__m512i)weights.high);
    }
  }
}

template <class Codes, class Form>
void Rows(const QuantizedGemm& g) {
  using Function = void (*)(const QuantizedGemm&, int64_t);
  static constexpr Function kTiles[kTileRows + 1] = {nullptr,
                                                     Tile<Codes, Form, 1>,
                                                     Tile<Codes, Form, 2>,
                                                     Tile<Codes, Form, 3>,
                                                     Tile<Codes, Form, 4>,
                                                     Tile<Codes, Form, 5>,
                                                     Tile<Codes, Form, 6>,
                                                     Tile<Codes, Form, 7>,
                                                     Tile<Codes, Form, 8>};
  for (int64_t row = 0; row < g.rows; row += kTileRows) {
    kTiles[std::min<int64_t>(kTileRows, g.rows - row)](g, row);
  }
}

template <class Codes>
void ByLayout(const QuantizedGemm& g) {
  const bool f32 = g.layout.scale_bytes == 4;
  if (g.layout.inputs == 16) return Rows<Codes, QuantizedForm<4, false, 16>>(g);
  if (!g.layout.has_minima) return Rows<Codes, QuantizedForm<2, false, 32>>(g);
  f32 ? Rows<Codes, QuantizedForm<4, true, 32>>(g) : Rows<Codes, QuantizedForm<2, true, 32>>(g);
}

template <class Codes>
void Product(const QuantizedGemm& g) {
  if (g.rows >= kUnpackRows) {
    Unpack<Codes>(g);
    ByLayout<Unpacked>(g);
  } else {
    ByLayout<Codes>(g);
  }
}

}  // namespace

void QuantizedAvx512Bf16(const QuantizedGemm& g) {
  g.layout.code_bits == 4 ? Product<FourBits>(g) : Product<EightBits>(g);
}

}  // namespace swiftcache::engine::backend::cpu
