// SPDX-License-Identifier: Apache-2.0
// Products of bf16 rows and quantised panels with AVX-512 BF16: codes become bf16 in registers, where they are exact, a
// pair of inputs at a time. As gemm_avx512_bf16.cc nothing of this file runs on a machine without it.
#include <immintrin.h>

#include <algorithm>
#include <type_traits>
#include <utility>

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

// Codes of fewer than 8 bits, looked up.
template <int kBits>
class Codes {
 public:
  SWIFTCACHE_INLINE explicit Codes(int zero) {
    alignas(64) Bf16 table[64];
    for (int i = 0; i < 64; ++i) table[i] = ToBf16(static_cast<float>((kBits == 4 ? i % 16 : i) - zero));
    table_ = _mm512_load_si512(table);
    table_from_32_ = _mm512_load_si512(table + 32);
  }
  static constexpr int64_t kPairBytes = 8 * kBits;
  SWIFTCACHE_INLINE Weights Load(const std::byte* pair) const {
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair)));
    return {LookUp(words, pair + 32), LookUp(_mm512_srli_epi16(words, 4), pair + 36)};
  }

 private:
  // words: the lower four bits of 16 outputs, and others above them. bits: where the fifth ones are.
  SWIFTCACHE_INLINE __m512bh LookUp(__m512i words, const std::byte* bits) const {
    if constexpr (kBits == 4) return (__m512bh)_mm512_permutexvar_epi16(words, table_);  // looks at the lowest 5 bits
    __m512i codes = _mm512_and_si512(words, _mm512_set1_epi16(15));
    for (int bit = 4; bit < kBits; ++bit) {
      __mmask32 is_set;
      __builtin_memcpy(&is_set, bits + 8 * (bit - 4), sizeof(is_set));
      codes = _mm512_mask_add_epi16(codes, is_set, codes, _mm512_set1_epi16(static_cast<int16_t>(1 << bit)));
    }
    if constexpr (kBits == 5) return (__m512bh)_mm512_permutexvar_epi16(codes, table_);
    return (__m512bh)_mm512_permutex2var_epi16(table_, codes, table_from_32_);
  }

  __m512i table_, table_from_32_;
};

template <>
class Codes<8> {
 public:
  SWIFTCACHE_INLINE explicit Codes(int) {}
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

SWIFTCACHE_INLINE __m512 LoadHalves(const std::byte* p, int half) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * half)));
}

// Scales or minima of 16 outputs, the half-th of the panel's. super: what those of the super-block are multiplied by.
template <class Form>
SWIFTCACHE_INLINE __m512 LoadScales(const std::byte* p, const std::byte* super, int half) {
  if constexpr (Form::kScaleBytes == 2) return LoadHalves(p, half);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * half));
  return _mm512_mul_ps(LoadHalves(super, half), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

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
template <int kBits>
SWIFTCACHE_AVX512_BF16 void Unpack(const QuantizedGemm& g) {
  const Codes<kBits> codes(g.layout.zero);
  auto* out = static_cast<std::byte*>(g.scratch);
  for (int64_t block = 0; block < g.blocks; ++block) {
    const std::byte* b = g.b + g.layout.block_at(block);
    for (int pair = 0; pair < g.layout.inputs / 2; ++pair, b += codes.kPairBytes, out += Unpacked::kPairBytes) {
      const Weights weights = codes.Load(b);
      _mm512_store_si512(out, (__m512i)weights.low);
      _mm512_store_si512(out + 64, (__m512i)weights.high);
    }
  }
}

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
    if (g.rows < kUnpackRows) return Rows<Codes<Form::kBits>, Form>(g);
    Unpack<Form::kBits>(g);
    Rows<Unpacked, typename Form::OfAnyBits>(g);
  });
}

}  // namespace swiftcache::engine::backend::cpu
