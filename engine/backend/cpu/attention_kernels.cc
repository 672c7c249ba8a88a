// SPDX-License-Identifier: Apache-2.0
// What attention does beside its two products: online softmax, and KV of int8.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/backend/cpu/kernels.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/cpu/attention_kernels.cc"
#include "engine/backend/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace swiftcache::engine::backend::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using Words = hn::Vec<F32>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4;

void Int8ToBf16(const int8_t* x, int64_t n, Bf16* out) {
  const hn::RebindToSigned<F32> d32;
  const hn::Rebind<int8_t, F32> d8;
  const hn::Rebind<uint16_t, F32> d16;
  const auto of = [d32](hn::VFromD<decltype(d8)> codes)
                      HWY_ATTR { return hn::BitCast(d32, hn::ConvertTo(F32(), hn::PromoteTo(d32, codes))); };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto bits = hn::BitCast(hn::RebindToUnsigned<F32>(), of(hn::LoadU(d8, x + i)));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32, hn::ShiftRight<16>(bits))), d16, out + i);
  }
  for (; i < n; ++i) out[i] = ToBf16(x[i]);
}

constexpr float kLeastScaled = 1e-35f;  // 127 / less may be infinite: all such a head's elements become zero

// Magnitudes are compared as the integers that their bits are, which puts NaN above all others.
float Quantize(const float* x, int64_t n, int8_t* out) {
  const F32 d;
  const hn::Rebind<int8_t, F32> d8;
  const hn::RebindToSigned<F32> di;
  auto maxima = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) maxima = hn::Max(maxima, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  int32_t largest_bits = hn::GetLane(hn::MaxOfLanes(di, maxima));
  for (; i < n; ++i) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(std::abs(x[i])));
  const auto largest = std::bit_cast<float>(largest_bits);
  const float to_int = largest > kLeastScaled ? 127 / largest : 0;
  const auto nearest = [=](Words of) HWY_ATTR {
    return hn::DemoteTo(d8, hn::NearestInt(hn::Mul(of, hn::Set(d, to_int))));  // saturates
  };
  for (i = 0; i + kLanes <= n; i += kLanes) hn::StoreU(nearest(hn::LoadU(d, x + i)), d8, out + i);
  for (; i < n; ++i) out[i] = hn::GetLane(nearest(hn::Set(d, x[i])));
  return largest / 127;
}

// e^x for x <= 0, within two units of the last place: half the instructions of Highway's, which are most of softmax. Where
// e^x would be smaller it stays at 1e-38.
template <class V>
HWY_INLINE V ExpOfNegative(V x) {
  const F32 d;
  const hn::RebindToUnsigned<F32> bits;
  x = hn::Max(hn::Set(d, -87.0f), x);
  // Beside 1.5 * 2^23 a sum is a whole number, which its lowest bits hold: x / ln 2.
  const auto large = hn::Set(d, 12582912.0f);
  const auto whole = hn::MulAdd(x, hn::Set(d, 1.44269504f), large);
  const auto n = hn::Sub(whole, large);
  // What is left of x, within half of ln 2. The first part of ln 2 times n leaves no rounding.
  const auto r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
  auto sum = hn::Set(d, 1.9875691500e-4f);
  for (const float term : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    sum = hn::MulAdd(sum, r, hn::Set(d, term));
  }
  const auto power = hn::Add(hn::MulAdd(sum, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, whole));
  return hn::BitCast(d, hn::Add(hn::BitCast(bits, power), exponent));  // times 2^n
}

// `scaled`: the tile has scales. `whole`: the row sees all of it, as it does of most.
template <bool scaled, bool whole>
HWY_INLINE void SoftmaxOf(const SoftmaxTile& tile) {
  const F32 d;
  const auto score = [&tile, d](int64_t i) HWY_ATTR {
    const auto stored = hn::LoadU(d, tile.scores + i);
    if constexpr (scaled) return hn::Mul(stored, hn::LoadU(d, tile.k_scales + i));
    return stored;
  };
  const auto lowest = hn::Set(d, -3.0e38f);
  auto maxima = lowest;
  const auto limit = hn::Set(d, static_cast<float>(tile.valid));
  const auto lane = hn::Iota(d, 0.0f);
  const auto seen = [limit, lane, d](int64_t i)
                        HWY_ATTR { return hn::Lt(hn::Add(lane, hn::Set(d, static_cast<float>(i))), limit); };
  for (int64_t i = 0; i < kTileTokens; i += kLanes) {
    maxima = hn::Max(maxima, whole ? score(i) : hn::IfThenElse(seen(i), score(i), lowest));
  }
  const float old_max = *tile.max;
  const auto max = hn::Max(hn::MaxOfLanes(d, maxima), hn::Set(d, old_max));
  auto sums = hn::Zero(d);
  for (int64_t i = 0; i < kTileTokens; i += kLanes) {
    auto p = ExpOfNegative(hn::Sub(score(i), max));
    if constexpr (!whole) p = hn::IfThenElseZero(seen(i), p);
    sums = hn::Add(sums, p);
    if constexpr (scaled) {
      hn::StoreU(hn::Mul(p, hn::LoadU(d, tile.v_scales + i)), d, tile.scores + i);
    } else {
      hn::StoreU(p, d, tile.scores + i);
    }
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  if (hn::GetLane(max) == old_max) {  // of most tiles: what was summed up keeps its scale
    *tile.sum += sum;
    return;
  }
  const auto alpha = ExpOfNegative(hn::Sub(hn::Set(d, old_max), max));
  *tile.max = hn::GetLane(max);
  *tile.sum = *tile.sum * hn::GetLane(alpha) + sum;
  for (int64_t i = 0; i < tile.out_cols; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, tile.out + i), alpha), d, tile.out + i);
  }
}

template <bool scaled>
HWY_INLINE void SoftmaxOf(const SoftmaxTile& tile) {
  tile.valid == kTileTokens ? SoftmaxOf<scaled, true>(tile) : SoftmaxOf<scaled, false>(tile);
}

void Softmax(const SoftmaxTile& tile) { tile.k_scales != nullptr ? SoftmaxOf<true>(tile) : SoftmaxOf<false>(tile); }

void SetAttention(Kernels& kernels) {
  kernels.softmax_tile = Softmax;
  kernels.quantize = Quantize;
  kernels.int8_to_bf16 = Int8ToBf16;
}

}  // namespace HWY_NAMESPACE
}  // namespace swiftcache::engine::backend::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace swiftcache::engine::backend::cpu {
void SetAttentionKernels(Isa isa, Kernels& kernels) { SWIFTCACHE_DISPATCH(isa, SetAttention, kernels); }
}  // namespace swiftcache::engine::backend::cpu
#endif
