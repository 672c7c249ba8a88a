// SPDX-License-Identifier: Apache-2.0
// Products of int8 rows with AVX-512 BW, on processors without VNNI: int8_avx2.cc has how.
#include <immintrin.h>

#include "engine/backend/cpu/int8_vectors512.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq")
#include "engine/backend/cpu/int8_tiles.h"

namespace swiftcache::engine::backend::cpu {
namespace {

HWY_INLINE __m512i InOrder(__m512i sum) {
  asm("" : "+v"(sum));
  return sum;
}

template <int kBits>
struct Vectors : Int8Vectors512<kBits> {
  using Sum = __m512i;
  static constexpr int kQuads = 2;
  static HWY_INLINE Sum Dot(Sum sum, const __m512i* weights, const __m512i* inputs) {
    const __m512i first = _mm512_maddubs_epi16(weights[0], inputs[0]);
    const __m512i pairs = _mm512_add_epi16(first, _mm512_maddubs_epi16(weights[1], inputs[1]));
    return InOrder(_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))));
  }
};

template <>
struct Vectors<8> : Int8Vectors512<8> {
  struct Weights {
    __m512i magnitudes;
    __mmask64 negative;
  };
  static HWY_INLINE Weights Load(const std::byte* quad, int half, int, int zero) {
    const __m512i codes = _mm512_sub_epi8(Codes(quad, half), _mm512_set1_epi8(static_cast<char>(zero)));
    return {_mm512_abs_epi8(codes), _mm512_movepi8_mask(codes)};
  }
  static HWY_INLINE Sum Begin(const int32_t*) { return _mm512_setzero_si512(); }
  static HWY_INLINE Sum Dot(Sum sum, const Weights* weights, const __m512i* inputs) {
    const __m512i with_sign = _mm512_mask_sub_epi8(*inputs, weights->negative, _mm512_setzero_si512(), *inputs);
    const __m512i pairs = _mm512_maddubs_epi16(weights->magnitudes, with_sign);
    return InOrder(_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))));
  }
};

template <>
struct Vectors<4> : Int8Vectors512<4> {
  static HWY_INLINE Sum Begin(const int32_t*) { return _mm512_setzero_si512(); }
  static HWY_INLINE Sum Dot(Sum sum, const __m512i* weights, const __m512i* inputs) {
    return InOrder(_mm512_add_epi16(sum, _mm512_maddubs_epi16(*weights, *inputs)));
  }
  static HWY_INLINE __m512 End(Sum sum, const int32_t* start) {
    return _mm512_cvtepi32_ps(
        _mm512_add_epi32(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)), _mm512_set1_epi32(*start)));
  }
};

}  // namespace

void Int8Avx512(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() { Int8Product<Vectors<Form::kBits>, Form>(g); });
}

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
