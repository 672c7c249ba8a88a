// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/sampling_kernels.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/cpu/sampling_kernels.cc"
#include "engine/backend/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#ifndef SWIFTCACHE_SAMPLING_KERNELS_ONCE
#define SWIFTCACHE_SAMPLING_KERNELS_ONCE
#include <algorithm>
#include <limits>
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace swiftcache::engine::backend::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<int32_t>;
using F64 = hn::ScalableTag<double>;
using U64 = hn::ScalableTag<uint64_t>;
using VF32 = hn::Vec<F32>;
using VI32 = hn::Vec<I32>;
using VU64 = hn::Vec<U64>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4;
constexpr float kLargest = std::numeric_limits<float>::max();

// 2^(30 - y) = mantissa * 2^-shift, mantissa in [2^29.5, 2^30.5]. Products and sums round one by one: a fused one would
// give other bits where there is none.
struct Power {
  VF32 mantissa;
  VI32 shift;
};

// y: in [0, 2^22).
HWY_INLINE Power Exp2OfMinus(VF32 y) {
  const F32 d;
  const I32 di;
  const auto magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it rounds to whole numbers
  const auto rounded = hn::Add(y, magic);
  const auto f = hn::Sub(hn::Sub(rounded, magic), y);  // exact, in [-1/2, 1/2]
  // ln(2)^i / i!, the series of 2^f: what is left out is below 2^-27.
  auto p = hn::Set(d, 1.5252734e-5f);
  for (const float c : {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f}) {
    p = hn::Add(hn::Mul(p, f), hn::Set(d, c));
  }
  p = hn::Add(hn::Mul(p, f), hn::Set(d, 1.0f));
  return {hn::Mul(p, hn::Set(d, 1073741824.0f)), hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, magic))};
}

// Bits under the largest, at most `cap`, which stands for what is NaN, too low, or below the floor.
HWY_INLINE VF32 BitsUnderMax(VF32 x, const WeightScale& scale, float cap) {
  const F32 d;
  const auto under = hn::Mul(hn::Sub(hn::Set(d, scale.max), hn::Min(x, hn::Set(d, kLargest))), hn::Set(d, scale.bits));
  const auto limit = hn::Set(d, cap);
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, scale.floor)), hn::Min(under, limit), limit);
}

// The weights of the lower and of the upper half of a vector of logits.
struct Weights {
  VU64 lower, upper;
};

template <class HalfVector>
HWY_INLINE VU64 Scaled(HalfVector mantissa, HalfVector shift) {
  const U64 d;
  return hn::Shr(hn::ShiftLeft<10>(hn::PromoteTo(d, mantissa)), hn::PromoteTo(d, shift));
}

HWY_INLINE Weights WeightsOf(VF32 x, const WeightScale& scale) {
  const I32 di;
  const hn::RebindToUnsigned<I32> du;
  const hn::Rebind<uint32_t, U64> half;
  const Power power = Exp2OfMinus(BitsUnderMax(x, scale, 60.0f));  // 2^(40 - 60) rounds to nothing
  const auto mantissa = hn::BitCast(du, hn::ConvertTo(di, power.mantissa));
  const auto shift = hn::BitCast(du, power.shift);
  return {Scaled(hn::LowerHalf(half, mantissa), hn::LowerHalf(half, shift)),
          Scaled(hn::UpperHalf(half, mantissa), hn::UpperHalf(half, shift))};
}

uint64_t SumWeights(const float* x, int64_t n, const WeightScale& scale) {
  const F32 d;
  const U64 du64;
  auto lower = hn::Zero(du64), upper = hn::Zero(du64);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Weights w = WeightsOf(hn::LoadU(d, x + i), scale);
    lower = hn::Add(lower, w.lower);
    upper = hn::Add(upper, w.upper);
  }
  return hn::GetLane(hn::SumOfLanes(du64, hn::Add(lower, upper)));
}

void WriteWeights(const float* x, int64_t n, const WeightScale& scale, uint64_t* out) {
  const F32 d;
  const U64 du64;
  for (int64_t i = 0; i < n; i += kLanes) {
    const Weights w = WeightsOf(hn::LoadU(d, x + i), scale);
    hn::StoreU(w.lower, du64, out + i);
    hn::StoreU(w.upper, du64, out + i + kLanes / 2);
  }
}

// Sixteen sums, of the entries with the same index modulo 16, whatever the length of a vector.
double SumExp(const float* x, int64_t n, float max) {
  constexpr int64_t kSums = 16, kVectors = kSums / kLanes;
  const F32 d;
  const I32 di;
  const F64 d64;
  const hn::Rebind<float, F64> half;
  const WeightScale scale{.max = max, .bits = 1.44269504f};
  hn::Vec<F64> sums[2 * kVectors];
  for (auto& sum : sums) sum = hn::Zero(d64);
  for (int64_t i = 0; i < n; i += kSums) {
    for (int64_t v = 0; v < kVectors; ++v) {
      // 2^-100 stands for all that is smaller: no double with a 1 in it takes notice.
      const Power power = Exp2OfMinus(BitsUnderMax(hn::LoadU(d, x + i + v * kLanes), scale, 100.0f));
      const auto value = hn::BitCast(d, hn::Sub(hn::BitCast(di, power.mantissa), hn::ShiftLeft<23>(power.shift)));
      sums[2 * v] = hn::Add(sums[2 * v], hn::PromoteTo(d64, hn::LowerHalf(half, value)));
      sums[2 * v + 1] = hn::Add(sums[2 * v + 1], hn::PromoteTo(d64, hn::UpperHalf(half, value)));
    }
  }
  double lanes[kSums], total = 0;
  for (int64_t v = 0; v < 2 * kVectors; ++v) hn::StoreU(sums[v], d64, lanes + v * kLanes / 2);
  for (const double lane : lanes) total += lane;
  return total * 0x1.0p-30;
}

void BlockMaxima(const float* x, int64_t n, float* out) {
  const F32 d;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto larger = [&](VF32 best, const float* at) HWY_ATTR {
    const auto v = hn::LoadU(d, at);
    return hn::IfThenElse(hn::Gt(v, best), v, best);  // NaN loses
  };
  for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
    const int64_t end = std::min(n, begin + kSampleBlock);
    auto even = lowest, odd = lowest;
    for (int64_t i = begin; i < end; i += 2 * kLanes) {
      even = larger(even, x + i);
      odd = larger(odd, x + i + kLanes);
    }
    *out++ = hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
  }
}

int64_t Collect(const float* x, int64_t n, float at_least, int32_t first_id, float* values, int32_t* ids) {
  const F32 d;
  const I32 di;
  const auto bound = hn::Set(d, at_least), largest = hn::Set(d, kLargest);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto wanted = hn::Ge(v, bound);
    if (hn::AllFalse(d, wanted)) continue;
    const auto id = hn::Iota(di, first_id + static_cast<int32_t>(i));
    hn::StoreU(hn::Compress(hn::Min(v, largest), wanted), d, values + count);
    hn::StoreU(hn::Compress(id, hn::RebindMask(di, wanted)), di, ids + count);
    count += static_cast<int64_t>(hn::CountTrue(d, wanted));
  }
  return count;
}

HWY_INLINE VI32 BucketOf(VF32 x, const BucketScale& scale) {
  const F32 d;
  const auto under = hn::Mul(hn::Sub(hn::Set(d, scale.highest), x), hn::Set(d, scale.per_unit));
  return hn::ConvertTo(I32(), hn::Min(under, hn::Set(d, static_cast<float>(kBuckets - 1))));
}

void Buckets(const float* x, int64_t n, const BucketScale& scale, int32_t* out) {
  for (int64_t i = 0; i < n; i += kLanes) hn::StoreU(BucketOf(hn::LoadU(F32(), x + i), scale), I32(), out + i);
}

int64_t Select(const float* x, const int32_t* ids, int64_t n, const BucketScale& scale, int32_t bucket, float* out_x,
               int32_t* out_ids) {
  const F32 d;
  const I32 di;
  const auto wanted_bucket = hn::Set(di, bucket);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto inside = hn::FirstN(di, static_cast<size_t>(n - i));
    const auto wanted = hn::And(hn::Eq(BucketOf(v, scale), wanted_bucket), inside);
    if (hn::AllFalse(di, wanted)) continue;
    const auto id = hn::LoadU(di, ids + i);
    hn::StoreU(hn::Compress(v, hn::RebindMask(d, wanted)), d, out_x + count);
    hn::StoreU(hn::Compress(id, wanted), di, out_ids + count);
    count += static_cast<int64_t>(hn::CountTrue(di, wanted));
  }
  return count;
}

SamplingKernels Kernels() {
  return {.block_maxima = BlockMaxima,
          .sum_weights = SumWeights,
          .weights = WriteWeights,
          .sum_exp = SumExp,
          .collect = Collect,
          .buckets = Buckets,
          .select = Select};
}

}  // namespace HWY_NAMESPACE
}  // namespace swiftcache::engine::backend::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace swiftcache::engine::backend::cpu {
SamplingKernels SamplingKernelsFor(Isa isa) { SWIFTCACHE_DISPATCH(isa, Kernels); }
}  // namespace swiftcache::engine::backend::cpu
#endif
