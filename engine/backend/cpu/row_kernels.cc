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
#include <cmath>
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

// Values are compared as the integers that their bits are, which puts NaN above all others.
void ToInt8Row(const float* x, int64_t groups, int zero, int inputs, Int8Group* out) {
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
