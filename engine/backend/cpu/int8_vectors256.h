// SPDX-License-Identifier: Apache-2.0
// What the vectors of int8_tiles.h have in common on AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"

#define SWIFTCACHE_AVX2 __attribute__((target("avx2,fma,f16c"), always_inline)) static inline

namespace swiftcache::engine::backend::cpu {

template <int kBits>
struct Int8Vectors256 {
  using Float = __m256;
  using Vector = __m256i;
  using Weights = Vector;
  using OfBytes = Int8Vectors256<8>;
  using Sum = __m256i;
  static constexpr int kQuads = 1, kLanes = 8, kRows = 4;
  static constexpr int64_t kQuadBytes = 16 * kBits;
  static constexpr int64_t kUnpackRows = kBits == 4 ? 64 : 8;

  // Of unsigned codes, and sums that begin with what zero takes away; which others are not, says so.
  SWIFTCACHE_AVX2 __m256i Load(const std::byte* quad, int half, int step, int) { return Codes(quad, half, step); }
  SWIFTCACHE_AVX2 Sum Begin(const int32_t* start) { return _mm256_set1_epi32(*start); }
  SWIFTCACHE_AVX2 __m256 End(Sum sum, const int32_t*) { return _mm256_cvtepi32_ps(sum); }

  // As Int8Vectors512::Codes, of the step-th 8 outputs of a half.
  SWIFTCACHE_AVX2 __m256i Codes(const std::byte* quad, int half, int step) {
    const auto* const at = reinterpret_cast<const __m256i*>(quad + 32 * step + (kBits == 8 ? 64 * half : 0));
    __m256i codes = _mm256_loadu_si256(at);
    if constexpr (kBits == 8) return codes;
    codes = _mm256_and_si256(half == 0 ? codes : _mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15));
    for (int bit = 4; bit < kBits; ++bit) {
      const __m256i is_set = SpreadBits(quad + 64 + 16 * (bit - 4) + 8 * half + 4 * step);
      codes = _mm256_or_si256(codes, _mm256_and_si256(is_set, _mm256_set1_epi8(static_cast<char>(1 << bit))));
    }
    return codes;
  }
  SWIFTCACHE_AVX2 void StoreCodes(__m256i codes, std::byte* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
  }
  // 32 bits, each as a byte of zeroes or ones.
  SWIFTCACHE_AVX2 __m256i SpreadBits(const std::byte* bits) {
    int32_t word;
    std::memcpy(&word, bits, sizeof(word));
    const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), bytes);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, each), each);
  }
  SWIFTCACHE_AVX2 __m256i Broadcast(const int8_t* inputs) {
    int32_t four;
    std::memcpy(&four, inputs, sizeof(four));
    return _mm256_set1_epi32(four);
  }
  SWIFTCACHE_AVX2 __m256 Halves(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  SWIFTCACHE_AVX2 __m256 Bytes(const std::byte* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  SWIFTCACHE_AVX2 __m256 Zero() { return _mm256_setzero_ps(); }
  SWIFTCACHE_AVX2 __m256 Set(float x) { return _mm256_set1_ps(x); }
  SWIFTCACHE_AVX2 __m256 Mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  SWIFTCACHE_AVX2 __m256 Add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  SWIFTCACHE_AVX2 __m256 MulAdd(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  SWIFTCACHE_AVX2 __m256 LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
  SWIFTCACHE_AVX2 void StoreFloats(__m256 x, float* p) { _mm256_storeu_ps(p, x); }
};

}  // namespace swiftcache::engine::backend::cpu
