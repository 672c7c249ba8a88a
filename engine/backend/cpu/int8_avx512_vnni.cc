// SPDX-License-Identifier: Apache-2.0
// Products of int8 rows with AVX-512 VNNI: four products of codes in one instruction, exact.
#include <immintrin.h>

#include "engine/backend/cpu/int8_vectors512.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "engine/backend/cpu/int8_tiles.h"

namespace swiftcache::engine::backend::cpu {
namespace {

template <int kBits>
struct Vectors : Int8Vectors512<kBits> {
  using Base = Int8Vectors512<kBits>;
  using Sum = __m512i;
  static HWY_INLINE __m512i Load(const std::byte* quad, int half, int, int) { return Base::Codes(quad, half); }
  static HWY_INLINE Sum Begin(const int32_t* start) { return _mm512_set1_epi32(*start); }
  static HWY_INLINE Sum Dot(Sum sum, __m512i weights, __m512i inputs) {
    return _mm512_dpbusd_epi32(sum, weights, inputs);
  }
  static HWY_INLINE __m512 End(Sum sum, const int32_t*) { return _mm512_cvtepi32_ps(sum); }
};

}  // namespace

void Int8Avx512Vnni(const QuantizedGemm& g) { Int8Product<Vectors>(g); }

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
