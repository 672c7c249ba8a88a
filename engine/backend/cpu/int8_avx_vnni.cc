// SPDX-License-Identifier: Apache-2.0
// Products of int8 rows with AVX-VNNI: what int8_avx512_vnni.cc does, on processors without AVX-512.
#include <immintrin.h>

#include "engine/backend/cpu/int8_vectors256.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avxvnni")
#include "engine/backend/cpu/int8_tiles.h"

namespace swiftcache::engine::backend::cpu {
namespace {

template <int kBits>
struct Vectors : Int8Vectors256<kBits> {
  using Sum = __m256i;
  static HWY_INLINE Sum Dot(Sum sum, const __m256i* weights, const __m256i* inputs) {
    return _mm256_dpbusd_avx_epi32(sum, *weights, *inputs);
  }
};

}  // namespace

void Int8AvxVnni(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() { Int8Product<Vectors<Form::kBits>, Form>(g); });
}

}  // namespace swiftcache::engine::backend::cpu
HWY_POP_ATTRIBUTES
