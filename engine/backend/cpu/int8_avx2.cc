// SPDX-License-Identifier: Apache-2.0
// Products of int8 rows with AVX2, which has no sum of four products; _mm256_maddubs_epi16 sums two, unsigned times
// signed, in 16 bits.
#include <immintrin.h>

#include "engine/backend/cpu/int8_vectors256.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
#include "engine/backend/cpu/int8_tiles.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// Keeps the compiler from first making all products and then adding them, for which there are too few registers.
HWY_INLINE __m256i InOrder(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// 5 and 6 bits: two pairs of products, at most 2 * 63 * 127 each, fit 16 bits.
template <int kBits>
struct Vectors : Int8Vectors256<kBits> {
  using Sum = __m256i;
  static constexpr int kQuads = 2;
  static HWY_INLINE Sum Dot(Sum sum, const __m256i* weights, const __m256i* inputs) {
    const __m256i first = _mm256_maddubs_epi16(weights[0], inputs[0]);
    const __m256i pairs = _mm256_add_epi16(first, _mm256_maddubs_epi16(weights[1], inputs[1]));
    return InOrder(_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
  }
};

// 8 bits: magnitudes of weights times inputs with the weights' signs, at most 2 * 128 * 127 a pair.
template <>
struct Vectors<8> : Int8Vectors256<8> {
  struct Weights {
    __m256i magnitudes, codes;
  };
  static HWY_INLINE Weights Load(const std::byte* quad, int half, int step, int zero) {
    const __m256i codes = _mm256_sub_epi8(Codes(quad, half, step), _mm256_set1_epi8(static_cast<char>(zero)));
    return {_mm256_abs_epi8(codes), codes};
  }
  static HWY_INLINE Sum Begin(const int32_t*) { return _mm256_setzero_si256(); }
  static HWY_INLINE Sum Dot(Sum sum, const Weights* weights, const __m256i* inputs) {
    const __m256i pairs = _mm256_maddubs_epi16(weights->magnitudes, _mm256_sign_epi8(*inputs, weights->codes));
    return InOrder(_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
  }
};

// 4 bits: a block's 8 pairs of products, at most 2 * 15 * 127 each, fit 16 bits.
template <>
struct Vectors<4> : Int8Vectors256<4> {
  static HWY_INLINE Sum Begin(const int32_t*) { return _mm256_setzero_si256(); }
  static HWY_INLINE Sum Dot(Sum sum, const __m256i* weights, const __m256i* inputs) {
    return InOrder(_mm256_add_epi16(sum, _mm256_maddubs_epi16(*weights, *inputs)));
  }
  static HWY_INLINE __m256 End(Sum sum, const int32_t* start) {
    return _mm256_cvtepi32_ps(
        _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(*start)));
  }
};

}  // namespace

void Int8Avx2(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() { Int8Product<Vectors<Form::kBits>, Form>(g); });
}

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
