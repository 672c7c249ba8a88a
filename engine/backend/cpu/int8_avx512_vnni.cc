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
  using Sum = __m512i;
  static HWY_INLINE Sum Dot(Sum sum, const __m512i* weights, const __m512i* inputs) {
    return _mm512_dpbusd_epi32(sum, *weights, *inputs);
  }
};

}  // namespace

void Int8Avx512Vnni(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() { Int8Product<Vectors<Form::kBits>, Form>(g); });
}

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
