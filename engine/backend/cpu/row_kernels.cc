// SPDX-License-Identifier: Apache-2.0
// What happens to a row between two products: RMSNorm, SiLU, rounding to bf16.
#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/cpu/row_kernels.cc"
#include "engine/backend/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
// clang-format on

#ifndef SWIFTCACHE_ROW_KERNELS_ONCE
#define SWIFTCACHE_ROW_KERNELS_ONCE
#include <algorithm>
#include <cmath>
#include <cstddef>
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace swiftcache::engine::backend::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using U32 = hn::ScalableTag<uint32_t>;
using I32 = hn::ScalableTag<int32_t>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4;

// Zeroes x[n, PadToPanel(n)).
void ZeroPad(float* x, int64_t n) {
  for (int64_t i = n; i < PadToPanel(n); ++i) x[i] = 0;
}

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const F32 d;
  auto sums = hn::Zero(d), sums2 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const auto v = hn::LoadU(d, x + i), w = hn::LoadU(d, x + i + kLanes);
    sums = hn::MulAdd(v, v, sums);
    sums2 = hn::MulAdd(w, w, sums2);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sums, sums2)));
  for (; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  const auto scale = hn::Set(d, factor);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
  ZeroPad(out, n);
}

void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
  const F32 d;
  const auto one = hn::Set(d, 1.0f);
  const auto lowest = hn::Set(d, -87.0f);  // where exp(-gate) still is finite
  // Whole vectors to the end: `gate` and `up` are readable and `out` is writable up to the padding.
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto g = hn::LoadU(d, gate + i);
    const auto sigmoid = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(hn::Max(g, lowest)))));
    hn::StoreU(hn::Mul(hn::Mul(g, sigmoid), hn::LoadU(d, up + i)), d, out + i);
  }
  ZeroPad(out, n);
}

void ToBf16Row(const float* x, int64_t n, Bf16* out) {
  const F32 d;
  const U32 du;
  const hn::RebindToSigned<U32> di;
  const hn::Rebind<uint16_t, U32> d16;
  const auto one = hn::Set(du, 1u), bias = hn::Set(du, 0x7fffu), quiet = hn::Set(du, 0x40u);
  for (int64_t i = 0; i < PadToPanel(n); i += kLanes) {
    const auto value = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), one);
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(bias, odd)));
    const auto nan = hn::Or(hn::ShiftRight<16>(bits), quiet);
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::IfThenElse(is_nan, nan, rounded))), d16, out + i);
  }
  for (int64_t i = n; i < PadToPanel(n); ++i) out[i] = 0;
}

// Of each group by itself. Values are compared as the integers that their bits are, which puts NaN above all others.
void ToInt8Groups(const float* x, int64_t groups, int zero, int inputs, Int8Group* out) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, I32> d8;
  for (int64_t g = 0; g < groups; ++g, x += kInt8Inputs, ++out) {
    auto largest_bits = hn::Zero(di);
    for (int64_t i = 0; i < kInt8Inputs; i += kLanes) {
      largest_bits = hn::Max(largest_bits, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
    }
    const float largest = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest_bits)));
    const auto factor = hn::Set(d, largest < 1e-30f ? 0.0f : 127.0f / largest);
    uint32_t sums[2] = {};  // which wrap around where the group is not finite
    for (int64_t i = 0; i < kInt8Inputs; i += kLanes) {
      const auto codes = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), factor));
      hn::StoreU(hn::DemoteTo(d8, codes), d8, out->codes + i);
      sums[i / inputs] += static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, codes)));
    }
    out->scale = largest / 127.0f;
    out->sum = out->scale * static_cast<float>(static_cast<int32_t>(sums[0] + sums[1]));
    for (int i = 0; i < 2; ++i) out->starts[i] = static_cast<int32_t>(0u - static_cast<uint32_t>(zero) * sums[i]);
  }
}

#if HWY_TARGET == HWY_AVX3
constexpr int64_t kGroupsAtOnce = 4;

// Lane g of each 128 bits: the bits of the largest magnitude of group g, of kGroupsAtOnce.
HWY_INLINE __m512i LargestBits(const float* x) {
  const auto magnitudes = [x](int64_t at) HWY_ATTR {
    return _mm512_and_si512(_mm512_loadu_si512(x + at), _mm512_set1_epi32(0x7fffffff));
  };
  __m512i of[kGroupsAtOnce];
  for (int64_t g = 0; g < kGroupsAtOnce; ++g) {
    of[g] = _mm512_max_epi32(magnitudes(g * kInt8Inputs), magnitudes(g * kInt8Inputs + kLanes));
  }
  const auto pairs = [](__m512i g, __m512i h) HWY_ATTR {
    return _mm512_max_epi32(_mm512_unpacklo_epi32(g, h), _mm512_unpackhi_epi32(g, h));
  };
  const __m512i low = pairs(of[0], of[1]), high = pairs(of[2], of[3]);
  __m512i all = _mm512_max_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  all = _mm512_max_epi32(all, _mm512_shuffle_i32x4(all, all, 0x4E));
  return _mm512_max_epi32(all, _mm512_shuffle_i32x4(all, all, 0xB1));
}

// The codes of two groups, one behind the other.
HWY_INLINE __m512i TwoGroupsCodes(const float* x, float first, float second) {
  const auto nearest = [x](int64_t at, float factor) HWY_ATTR {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + at), _mm512_set1_ps(factor)));
  };
  const __m512i of_first = _mm512_packs_epi32(nearest(0, first), nearest(kLanes, first));
  const __m512i of_second = _mm512_packs_epi32(nearest(2 * kLanes, second), nearest(3 * kLanes, second));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(of_first, of_second));
}

// As ToInt8Groups, kGroupsAtOnce. False, and nothing is written: one of them is not finite.
HWY_INLINE bool ToInt8AtOnce(const float* x, int zero, int inputs, Int8Group* out) {
  const __m128i bits = _mm512_castsi512_si128(LargestBits(x));
  if (_mm_cmpgt_epi32_mask(bits, _mm_set1_epi32(0x7f7fffff)) != 0) return false;
  const __m128 largest = _mm_castsi128_ps(bits), steps = _mm_set1_ps(127.0f);
  const __mmask8 counts = _mm_cmp_ps_mask(largest, _mm_set1_ps(1e-30f), _CMP_GE_OQ);
  alignas(16) float factors[kGroupsAtOnce];
  _mm_store_ps(factors, _mm_maskz_div_ps(counts, steps, largest));
  const __m128 scales = _mm_div_ps(largest, steps);
  // Eight codes' sum, each plus 128: in the lower half of a word those of the first two groups, in the upper those of the
  // others. Then the same of each 16.
  __m512i sums = _mm512_setzero_si512();
  for (int64_t g = 0; g < kGroupsAtOnce; g += 2) {
    const __m512i codes = TwoGroupsCodes(x + g * kInt8Inputs, factors[g], factors[g + 1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[g].codes), _mm512_castsi512_si256(codes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[g + 1].codes), _mm512_extracti64x4_epi64(codes, 1));
    const __m512i eights = _mm512_sad_epu8(_mm512_xor_si512(codes, _mm512_set1_epi8(-128)), _mm512_setzero_si512());
    sums = _mm512_or_si512(sums, g == 0 ? eights : _mm512_slli_epi64(eights, 32));
  }
  sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
  sums = _mm512_sub_epi32(sums, _mm512_set1_epi32(16 * 128));
  const __m512i halves =
      _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0), sums);
  __m128i first = _mm512_castsi512_si128(halves), second = _mm512_extracti32x4_epi32(halves, 1);
  const __m128i all = _mm_add_epi32(first, second);
  if (inputs == kInt8Inputs) {
    first = all;
    second = _mm_setzero_si128();
  }
  const __m128i less = _mm_set1_epi32(-zero);
  __m128 rows[] = {scales, _mm_mul_ps(scales, _mm_cvtepi32_ps(all)), _mm_castsi128_ps(_mm_mullo_epi32(less, first)),
                   _mm_castsi128_ps(_mm_mullo_epi32(less, second))};
  _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
  static_assert(sizeof(Int8Group) - offsetof(Int8Group, scale) == sizeof(__m128));
  for (int64_t g = 0; g < kGroupsAtOnce; ++g) _mm_storeu_ps(&out[g].scale, rows[g]);
  return true;
}

void ToInt8Row(const float* x, int64_t groups, int zero, int inputs, Int8Group* out) {
  if (groups < kGroupsAtOnce) return ToInt8Groups(x, groups, zero, inputs, out);
  for (int64_t g = 0; g < groups; g += kGroupsAtOnce) {
    const int64_t first = std::min(g, groups - kGroupsAtOnce);  // the last may be done twice, to the same bits
    const float* const from = x + first * kInt8Inputs;
    if (!ToInt8AtOnce(from, zero, inputs, out + first)) ToInt8Groups(from, kGroupsAtOnce, zero, inputs, out + first);
  }
}
#else
void ToInt8Row(const float* x, int64_t groups, int zero, int inputs, Int8Group* out) {
  ToInt8Groups(x, groups, zero, inputs, out);
}
#endif

void Residual(float* x, int64_t groups, const Int8Group* of_x) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, I32> d8;
  for (int64_t g = 0; g < groups; ++g, x += kInt8Inputs, ++of_x) {
    const auto scale = hn::Set(d, of_x->scale);
    for (int64_t i = 0; i < kInt8Inputs; i += kLanes) {
      const auto codes = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, of_x->codes + i)));
      hn::StoreU(hn::NegMulAdd(codes, scale, hn::LoadU(d, x + i)), d, x + i);
    }
  }
}

void SetRow(Kernels& kernels) {
  kernels.rms_norm = RmsNorm;
  kernels.silu_mul = SiluMul;
  kernels.to_bf16 = ToBf16Row;
  kernels.to_int8 = ToInt8Row;
  kernels.residual = Residual;
}

}  // namespace HWY_NAMESPACE
}  // namespace swiftcache::engine::backend::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace swiftcache::engine::backend::cpu {
void SetRowKernels(Isa isa, Kernels& kernels) { SWIFTCACHE_DISPATCH(isa, SetRow, kernels); }
}  // namespace swiftcache::engine::backend::cpu
#endif
