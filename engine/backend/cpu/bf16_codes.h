// SPDX-License-Identifier: Apache-2.0
// Codes of quantised panels as bf16, which holds each exactly, and their scales as f32, with AVX-512 BF16: what the kernels
// of rows in bf16 have in common.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/backend/bf16.h"
#include "engine/backend/cpu/quantized_panel.h"

#define SWIFTCACHE_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define SWIFTCACHE_INLINE SWIFTCACHE_AVX512_BF16 inline __attribute__((always_inline))

namespace swiftcache::engine::backend::cpu {

// The weights of a pair of inputs: [outputs 0..15][2] and [outputs 16..31][2].
struct Bf16Weights {
  __m512bh low, high;
};

// Codes of fewer than 8 bits, looked up.
template <int kBits>
class Bf16Codes {
 public:
  SWIFTCACHE_INLINE explicit Bf16Codes(int zero) {
    alignas(64) Bf16 table[64];
    for (int i = 0; i < 64; ++i) table[i] = ToBf16(static_cast<float>((kBits == 4 ? i % 16 : i) - zero));
    table_ = _mm512_load_si512(table);
    table_from_32_ = _mm512_load_si512(table + 32);
  }
  static constexpr int64_t kPairBytes = 8 * kBits;
  SWIFTCACHE_INLINE Bf16Weights Load(const std::byte* pair) const {
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair)));
    return {LookUp(words, pair + 32), LookUp(_mm512_srli_epi16(words, 4), pair + 36)};
  }

 private:
  // words: the lower four bits of 16 outputs, and others above them. bits: where the fifth ones are.
  SWIFTCACHE_INLINE __m512bh LookUp(__m512i words, const std::byte* bits) const {
    if constexpr (kBits == 4) return (__m512bh)_mm512_permutexvar_epi16(words, table_);  // looks at the lowest 5 bits
    const __m512i low = _mm512_and_si512(words, _mm512_set1_epi16(15));
    const __m512i codes = _mm512_mask_add_epi16(low, LoadBits(bits), low, _mm512_set1_epi16(16));
    const __m512i values = _mm512_permutexvar_epi16(codes, table_);
    if constexpr (kBits == 5) return (__m512bh)values;
    return (__m512bh)_mm512_mask_permutexvar_epi16(values, LoadBits(bits + 8), codes, table_from_32_);
  }
  SWIFTCACHE_INLINE static __mmask32 LoadBits(const std::byte* bits) {
    __mmask32 mask;
    __builtin_memcpy(&mask, bits, sizeof(mask));
    return mask;
  }

  __m512i table_, table_from_32_;
};

template <>
class Bf16Codes<8> {
 public:
  SWIFTCACHE_INLINE explicit Bf16Codes(int) {}
  static constexpr int64_t kPairBytes = 64;
  SWIFTCACHE_INLINE Bf16Weights Load(const std::byte* pair) const {
    return {_mm512_cvtne2ps_pbh(Widen(pair + 16), Widen(pair)),
            _mm512_cvtne2ps_pbh(Widen(pair + 48), Widen(pair + 32))};
  }

 private:
  SWIFTCACHE_INLINE static __m512 Widen(const std::byte* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
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

/// What UnpackBlocks writes of a pair of inputs.
inline constexpr int64_t kUnpackedPairBytes = 2 * 32 * sizeof(Bf16);

/// out: [count blocks][pairs][outputs 0..15, 16..31][2] bf16, at a multiple of 64.
template <int kBits>
SWIFTCACHE_AVX512_BF16 inline void UnpackBlocks(const QuantizedGemm& g, int64_t first, int64_t count, void* out) {
  const Bf16Codes<kBits> codes(g.layout.zero);
  auto* to = static_cast<std::byte*>(out);
  for (int64_t block = first; block < first + count; ++block) {
    const std::byte* b = g.b + g.layout.block_at(block);
    for (int pair = 0; pair < g.layout.inputs / 2; ++pair, b += codes.kPairBytes, to += kUnpackedPairBytes) {
      __builtin_prefetch(b + kAhead);
      const Bf16Weights weights = codes.Load(b);
      _mm512_store_si512(to, (__m512i)weights.low);
      _mm512_store_si512(to + 64, (__m512i)weights.high);
    }
  }
}

}  // namespace swiftcache::engine::backend::cpu
