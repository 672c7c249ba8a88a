// SPDX-License-Identifier: Apache-2.0
// What the vectors of int8_tiles.h have in common on AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"

#define SWIFTCACHE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"), always_inline)) static inline

namespace swiftcache::engine::backend::cpu {

template <int kBits>
struct Int8Vectors512 {
  using Float = __m512;
  using Vector = __m512i;
  using Weights = Vector;
  using OfBytes = Int8Vectors512<8>;
  using Sum = __m512i;
  static constexpr int kQuads = 1, kLanes = 16, kRows = 8;
  static constexpr int64_t kQuadBytes = 16 * kBits;
  static constexpr int64_t kUnpackRows = kBits == 4 ? kNeverUnpack : 96;

  // As Int8Vectors256's.
  SWIFTCACHE_AVX512 __m512i Load(const std::byte* quad, int half, int, int) { return Codes(quad, half); }
  SWIFTCACHE_AVX512 Sum Begin(const int32_t* start) { return _mm512_set1_epi32(*start); }
  SWIFTCACHE_AVX512 __m512 End(Sum sum, const int32_t*) { return _mm512_cvtepi32_ps(sum); }

  // Unsigned codes of 16 outputs, as quantized_panel.h stores them.
  SWIFTCACHE_AVX512 __m512i Codes(const std::byte* quad, int half) {
    if constexpr (kBits == 8) return _mm512_loadu_si512(quad + 64 * half);
    const __m512i both = _mm512_loadu_si512(quad);
    __m512i codes = _mm512_and_si512(half == 0 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
    for (int bit = 4; bit < kBits; ++bit) {
      __mmask64 is_set;
      std::memcpy(&is_set, quad + 64 + 16 * (bit - 4) + 8 * half, sizeof(is_set));
      codes = _mm512_mask_add_epi8(codes, is_set, codes, _mm512_set1_epi8(static_cast<char>(1 << bit)));
    }
    return codes;
  }
  SWIFTCACHE_AVX512 void StoreCodes(__m512i codes, std::byte* p) { _mm512_storeu_si512(p, codes); }
  SWIFTCACHE_AVX512 __m512i Broadcast(const int8_t* inputs) {
    int32_t four;
    std::memcpy(&four, inputs, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  SWIFTCACHE_AVX512 __m512 Halves(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  SWIFTCACHE_AVX512 __m512 Bytes(const std::byte* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  SWIFTCACHE_AVX512 __m512 Zero() { return _mm512_setzero_ps(); }
  SWIFTCACHE_AVX512 __m512 Set(float x) { return _mm512_set1_ps(x); }
  SWIFTCACHE_AVX512 __m512 Mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  SWIFTCACHE_AVX512 __m512 Add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  SWIFTCACHE_AVX512 __m512 MulAdd(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  SWIFTCACHE_AVX512 __m512 LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
  SWIFTCACHE_AVX512 void StoreFloats(__m512 x, float* p) { _mm512_storeu_ps(p, x); }
};

}  // namespace swiftcache::engine::backend::cpu
