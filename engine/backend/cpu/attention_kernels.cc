// SPDX-License-Identifier: Apache-2.0
// What attention does beside its two products: tiles of K and V out of the blocks, and online softmax.
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

// kLanes elements, widened.
HWY_INLINE Words Load(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE Words Load(const Bf16* p) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, F32> d16;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}
HWY_INLINE Words Load(const int8_t* p) {
  const hn::RebindToSigned<F32> d32;
  return hn::ConvertTo(F32(), hn::PromoteTo(d32, hn::LoadU(hn::Rebind<int8_t, F32>(), p)));
}
// Two elements of a row, which become the two bf16 of a word: even below odd.
struct Int8Pair {
  int8_t even, odd;
};
HWY_INLINE Words Load(const Int8Pair* p) {
  const hn::RebindToUnsigned<F32> d32;
  const hn::RebindToSigned<F32> s32;
  const hn::Rebind<uint16_t, F32> d16;
  const auto both = hn::PromoteTo(s32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  const auto even = hn::ConvertTo(F32(), hn::ShiftRight<24>(hn::ShiftLeft<24>(both)));
  const auto odd = hn::ConvertTo(F32(), hn::ShiftRight<24>(hn::ShiftLeft<16>(both)));  // its low half is zero
  return hn::BitCast(F32(), hn::Or(hn::ShiftRight<16>(hn::BitCast(d32, even)), hn::BitCast(d32, odd)));
}
// kLanes elements as bf16, in the lower halves of the words.
HWY_INLINE auto LoadBf16(const Bf16* p) {
  return hn::PromoteTo(hn::RebindToUnsigned<F32>(), hn::LoadU(hn::Rebind<uint16_t, F32>(), p));
}
HWY_INLINE auto LoadBf16(const int8_t* p) {
  return hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<F32>(), Load(p)));
}
HWY_INLINE float Load1(const float* p) { return *p; }
HWY_INLINE float Load1(const Bf16* p) { return FromBf16(*p); }
HWY_INLINE float Load1(const int8_t* p) { return *p; }
HWY_INLINE float Load1(const Int8Pair* p) {
  return std::bit_cast<float>(uint32_t{ToBf16(p->even)} | uint32_t{ToBf16(p->odd)} << 16);
}

// Four rows: word i of a 128-bit block is of row i then, and block b of out[j] is column 4 * b + j.
template <typename T>
HWY_INLINE void TransposeBlocks(const T* const* rows, int64_t d, Words out[4]) {
  const F32 d4;
  const hn::ScalableTag<double> d2;
  const Words r0 = Load(rows[0] + d), r1 = Load(rows[1] + d), r2 = Load(rows[2] + d), r3 = Load(rows[3] + d);
  const auto a = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1)), b = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
  const auto e = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1)), f = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
  out[0] = hn::BitCast(d4, hn::InterleaveLower(d2, a, b));
  out[1] = hn::BitCast(d4, hn::InterleaveUpper(d2, a, b));
  out[2] = hn::BitCast(d4, hn::InterleaveLower(d2, e, f));
  out[3] = hn::BitCast(d4, hn::InterleaveUpper(d2, e, f));
}

// out[i][0..kLanes) = rows[0..kLanes)[d + i] for i < kLanes, rows of `out` being kPanelCols apart.
template <typename T>
HWY_INLINE void TransposeSquare(const T* const* rows, int64_t d, float* out) {
  const F32 d4;
  Words of[kLanes / 4][4];  // four rows each
  for (int64_t r = 0; r < kLanes / 4; ++r) TransposeBlocks(rows + 4 * r, d, of[r]);
  const auto store = [out](int64_t i, Words row) HWY_ATTR { hn::StoreU(row, F32(), out + i * kPanelCols); };
  for (int64_t j = 0; j < 4; ++j) {
    if constexpr (kLanes == 4) {
      store(j, of[0][j]);
    } else if constexpr (kLanes == 8) {
      store(j, hn::ConcatLowerLower(d4, of[1][j], of[0][j]));
      store(4 + j, hn::ConcatUpperUpper(d4, of[1][j], of[0][j]));
    } else {
      const auto even01 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(of[1][j]), of[0][j]);  // blocks 0 and 2 of both
      const auto odd01 = hn::OddEvenBlocks(of[1][j], hn::SwapAdjacentBlocks(of[0][j]));
      const auto even23 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(of[3][j]), of[2][j]);
      const auto odd23 = hn::OddEvenBlocks(of[3][j], hn::SwapAdjacentBlocks(of[2][j]));
      store(j, hn::ConcatLowerLower(d4, even23, even01));
      store(4 + j, hn::ConcatLowerLower(d4, odd23, odd01));
      store(8 + j, hn::ConcatUpperUpper(d4, even23, even01));
      store(12 + j, hn::ConcatUpperUpper(d4, odd23, odd01));
    }
  }
}

// The last square may overlap the one before; a row that is not there is the last one again.
template <typename T>
HWY_INLINE void LoadK(const void* const* rows, int64_t count, int64_t dims, float* out) {
  for (int64_t t = 0; t < count; t += kLanes) {
    const T* of[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) of[i] = static_cast<const T*>(rows[t + i < count ? t + i : count - 1]);
    float* to = out + t / kPanelCols * dims * kPanelCols + t % kPanelCols;
    for (int64_t d = 0; dims >= kLanes && d < dims; d += kLanes) {
      const int64_t first = d + kLanes <= dims ? d : dims - kLanes;
      TransposeSquare(of, first, to + first * kPanelCols);
    }
    for (int64_t d = 0; dims < kLanes && d < dims; ++d) {
      for (int64_t i = 0; i < kLanes; ++i) to[d * kPanelCols + i] = Load1(of[i] + d);
    }
  }
}

template <typename T>
HWY_INLINE void LoadV(const void* const* rows, int64_t count, int64_t head_dim, float* out) {
  for (int64_t first = 0; first < head_dim; first += kPanelCols) {
    const int64_t dims = head_dim - first < kPanelCols ? head_dim - first : kPanelCols;
    for (int64_t t = 0; t < kTileTokens; ++t, out += kPanelCols) {
      int64_t d = 0;
      if (t < count) {
        const T* row = static_cast<const T*>(rows[t]) + first;
        for (; d + kLanes <= dims; d += kLanes) hn::StoreU(Load(row + d), F32(), out + d);
        for (; d < dims; ++d) out[d] = Load1(row + d);
      }
      for (; d < kPanelCols; ++d) out[d] = 0;
    }
  }
}

// Rows t and t + 1 of a panel, interleaved, as bf16. `dims` <= kPanelCols elements are there.
template <typename T>
HWY_INLINE void PairRows(const T* even, const T* odd, int64_t dims, Bf16* out) {
  const hn::ScalableTag<uint32_t> d32;
  int64_t d = 0;
  for (; d + kLanes <= dims; d += kLanes) {
    const auto pairs = hn::Or(LoadBf16(even + d), hn::ShiftLeft<16>(LoadBf16(odd + d)));
    hn::StoreU(pairs, d32, reinterpret_cast<uint32_t*>(out + 2 * d));
  }
  for (; d < dims; ++d) {
    out[2 * d] = ToBf16(Load1(even + d));
    out[2 * d + 1] = ToBf16(Load1(odd + d));
  }
  for (; d < kPanelCols; ++d) out[2 * d] = out[2 * d + 1] = 0;
}

template <typename T>
void LoadVPairs(const void* const* rows, int64_t count, int64_t head_dim, void* out) {
  static constexpr T kZeroes[kPanelCols] = {};
  Bf16* to = static_cast<Bf16*>(out);
  for (int64_t first = 0; first < head_dim; first += kPanelCols) {
    const int64_t dims = head_dim - first < kPanelCols ? head_dim - first : kPanelCols;
    for (int64_t t = 0; t < kTileTokens; t += 2, to += 2 * kPanelCols) {
      const T* even = t < count ? static_cast<const T*>(rows[t]) + first : kZeroes;
      const T* odd = t + 1 < count ? static_cast<const T*>(rows[t + 1]) + first : kZeroes;
      PairRows(even, odd, dims, to);
    }
  }
}

template <typename T>
void LoadKRows(const void* const* rows, int64_t count, int64_t head_dim, void* out) {
  LoadK<T>(rows, count, head_dim, static_cast<float*>(out));
}
// A pair moves as one 32-bit word; the moves keep every bit pattern.
template <typename Pair>
void LoadKPairs(const void* const* rows, int64_t count, int64_t head_dim, void* out) {
  LoadK<Pair>(rows, count, head_dim / 2, static_cast<float*>(out));
}
template <typename T>
void LoadVRows(const void* const* rows, int64_t count, int64_t head_dim, void* out) {
  LoadV<T>(rows, count, head_dim, static_cast<float*>(out));
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

// `scaled`: the tile has scales.
template <bool scaled>
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
  for (int64_t i = 0; i < kTileTokens; i += kLanes) {
    const auto seen = hn::Lt(hn::Add(lane, hn::Set(d, static_cast<float>(i))), limit);
    maxima = hn::Max(maxima, hn::IfThenElse(seen, score(i), lowest));
  }
  const float old_max = *tile.max;
  const auto max = hn::Max(hn::MaxOfLanes(d, maxima), hn::Set(d, old_max));
  auto sums = hn::Zero(d);
  for (int64_t i = 0; i < kTileTokens; i += kLanes) {
    const auto seen = hn::Lt(hn::Add(lane, hn::Set(d, static_cast<float>(i))), limit);
    const auto p = hn::IfThenElseZero(seen, ExpOfNegative(hn::Sub(score(i), max)));
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

void Softmax(const SoftmaxTile& tile) { tile.k_scales != nullptr ? SoftmaxOf<true>(tile) : SoftmaxOf<false>(tile); }

void SetAttention(Kernels& kernels) {
  kernels.softmax_tile = Softmax;
  kernels.quantize = Quantize;
  kernels.load_f32 = {LoadKRows<float>, LoadVRows<float>};
  kernels.load_bf16 = {LoadKRows<Bf16>, LoadVRows<Bf16>};
  kernels.load_bf16_pairs = {LoadKPairs<float>, LoadVPairs<Bf16>};
  kernels.load_int8 = {LoadKRows<int8_t>, LoadVRows<int8_t>};
  kernels.load_int8_pairs = {LoadKPairs<Int8Pair>, LoadVPairs<int8_t>};
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
