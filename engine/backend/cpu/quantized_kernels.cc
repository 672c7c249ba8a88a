// SPDX-License-Identifier: Apache-2.0
// Products of f32 rows and quantised panels.
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/cpu/quantized_kernels.cc"
#include "engine/backend/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace swiftcache::engine::backend::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<int32_t>;
using U32 = hn::ScalableTag<uint32_t>;
using U16 = hn::Rebind<uint16_t, U32>;
using I8 = hn::Rebind<int8_t, I32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;

constexpr int kLanes = HWY_MAX_BYTES / 4;
// As gemm_kernels.cc: rows and vectors of columns of a register tile.
constexpr int kTileRows = HWY_MAX_BYTES == 64 ? 12 : 6;
constexpr int kTileVectors = 2;
constexpr int kThinRows = HWY_MAX_BYTES == 64 ? 4 : 2;  // as wide as one row: a panel is read and unpacked once
using TileSizes = std::conditional_t<HWY_MAX_BYTES == 64, std::integer_sequence<int, 12, 8, 6, 4, 3, 2, 1>,
                                     std::integer_sequence<int, 6, 3, 2, 1>>;
constexpr int64_t kUnpackRows = 4 * kTileRows;  // from which on it costs less to unpack a panel once
constexpr int kThinVectors = kPanelCols / kLanes < 4 ? kPanelCols / kLanes : 4;

// Adds a higher bit of the codes of a pair of inputs.
template <int kBit>
HWY_INLINE hn::VFromD<U32> AddBit(hn::VFromD<U32> words, const std::byte* pair, int64_t col) {
  uint32_t word;
  std::memcpy(&word, pair + 32 + 8 * (kBit - 4) + 4 * (col / 16), sizeof(word));
  const auto at = hn::ShiftLeft<1>(hn::Iota(U32(), static_cast<uint32_t>(col % 16)));
  const auto bits = hn::Shr(hn::Set(U32(), word), at);  // the lowest two are those of both inputs
  const auto first = hn::ShiftLeft<kBit>(hn::And(bits, hn::Set(U32(), 1u)));
  return hn::Or(words, hn::Or(first, hn::ShiftLeft<kBit + 7>(hn::And(bits, hn::Set(U32(), 2u)))));
}

// The codes of a pair of inputs for kLanes outputs from `col` on: a word of 16 bits of each.
template <int kBits>
HWY_INLINE hn::VFromD<U32> LoadCodes(const std::byte* pair, int64_t col) {
  const auto* words = reinterpret_cast<const uint16_t*>(pair);
  auto wide = hn::PromoteTo(U32(), hn::LoadU(U16(), words + (kBits == 8 ? col : col % 16)));
  if constexpr (kBits == 8) return wide;
  if (col >= 16) wide = hn::ShiftRight<4>(wide);
  if constexpr (kBits > 4) wide = AddBit<4>(hn::And(wide, hn::Set(U32(), 0x0F0Fu)), pair, col);
  if constexpr (kBits > 5) wide = AddBit<5>(wide, pair, col);
  return wide;
}

// Of the first or second input of the pair, less the zero. Bits that stand in a float's mantissa are that float and their
// value: one operation or two put them there, one subtracts. So weights are the integers that they are on every instruction
// set, for both kinds of products.
template <int kBits, bool kSecond>
HWY_INLINE hn::VFromD<F32> Weights(hn::VFromD<U32> words, int zero) {
  constexpr int kShift = kSecond ? 8 : 0, kFloat = kSecond ? 0x47000000 : 0x4B000000,
                kValue = kSecond ? 1 << 15 : 1 << 23;
  constexpr int kSign = kBits == 8 ? 0x80 : 0;  // a signed code, and what is then subtracted from it too much
  const auto mask = hn::Set(U32(), ((1u << kBits) - 1) << kShift);
  const auto base = hn::Set(U32(), static_cast<uint32_t>(kFloat + (kSign << kShift)));
#if HWY_TARGET == HWY_AVX3
  const hn::VFromD<U32> bits{_mm512_ternarylogic_epi32(words.raw, mask.raw, base.raw, 0x6A)};  // (words & mask) ^ base
#else
  const auto bits = hn::Xor(hn::And(words, mask), base);
#endif
  return hn::Sub(hn::BitCast(F32(), bits), hn::Set(F32(), static_cast<float>(kValue + kSign + zero)));
}

// How a tile gets the weights of a pair of inputs, for kVectors vectors of outputs from `col` on.
template <int kBits>
struct Packed {
  static constexpr int64_t kPairBytes = 8 * kBits;
#if HWY_TARGET == HWY_AVX3
  // A tile has all 32 outputs.
  static HWY_INLINE __m512i Words(__m256i pairs) { return _mm512_cvtepu16_epi32(pairs); }
  template <int kVectors>
  static HWY_INLINE void Load(const std::byte* pair, int64_t, int zero, hn::VFromD<F32> (&first)[kVectors],
                              hn::VFromD<F32> (&second)[kVectors]) {
    static_assert(kVectors == 2);
    const auto* const at = reinterpret_cast<const __m256i*>(pair);
    if constexpr (kBits == 4) {
      alignas(64) static constexpr float kCodes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      const __m512 values = _mm512_sub_ps(_mm512_load_ps(kCodes), _mm512_set1_ps(static_cast<float>(zero)));
      const __m512i words = Words(_mm256_loadu_si256(at));
      first[0] = {_mm512_permutexvar_ps(words, values)};  // it looks at the lowest four bits alone
      first[1] = {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 4), values)};
      second[0] = {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 8), values)};
      second[1] = {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 12), values)};
      return;
    }
    __m512i words[2];
    if constexpr (kBits == 8) {
      for (int v = 0; v < 2; ++v) words[v] = Words(_mm256_loadu_si256(at + v));
    } else {
      const __m512i shifts = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
      const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256(at));
      __m512i codes = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15));
      for (int bit = 4; bit < kBits; ++bit) {
        __mmask64 is_set;
        std::memcpy(&is_set, pair + 32 + 8 * (bit - 4), sizeof(is_set));
        codes = _mm512_mask_add_epi8(codes, is_set, codes, _mm512_set1_epi8(static_cast<char>(1 << bit)));
      }
      words[0] = Words(_mm512_castsi512_si256(codes));
      words[1] = Words(_mm512_extracti64x4_epi64(codes, 1));
    }
    for (int v = 0; v < 2; ++v) {
      first[v] = Weights<kBits, false>({words[v]}, zero);
      second[v] = Weights<kBits, true>({words[v]}, zero);
    }
  }
#else
  template <int kVectors>
  static HWY_INLINE void Load(const std::byte* pair, int64_t col, int zero, hn::VFromD<F32> (&first)[kVectors],
                              hn::VFromD<F32> (&second)[kVectors]) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto words = LoadCodes<kBits>(pair, col + v * kLanes);
      first[v] = Weights<kBits, false>(words, zero);
      second[v] = Weights<kBits, true>(words, zero);
    }
  }
#endif
};

// f32 [2][32]
struct Unpacked {
  static constexpr int64_t kPairBytes = 2 * kPanelCols * sizeof(float);
  template <int kVectors>
  static HWY_INLINE void Load(const std::byte* pair, int64_t col, int, hn::VFromD<F32> (&first)[kVectors],
                              hn::VFromD<F32> (&second)[kVectors]) {
    const auto* values = reinterpret_cast<const float*>(pair) + col;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      first[v] = hn::Load(F32(), values + v * kLanes);
      second[v] = hn::Load(F32(), values + kPanelCols + v * kLanes);
    }
  }
};

template <int kBits>
HWY_NOINLINE void Unpack(const QuantizedGemm& g) {
  const F32 d;
  auto* out = static_cast<float*>(g.scratch);
  for (int64_t block = 0; block < g.blocks; ++block) {
    const std::byte* b = g.b + g.layout.block_at(block);
    for (int pair = 0; pair < g.layout.inputs / 2; ++pair, b += Packed<kBits>::kPairBytes, out += 2 * kPanelCols) {
      __builtin_prefetch(b + kAhead);
      for (int64_t col = 0; col < kPanelCols; col += kTileVectors * kLanes) {
        hn::VFromD<F32> first[kTileVectors], second[kTileVectors];
        Packed<kBits>::Load(b, col, g.layout.zero, first, second);
        for (int v = 0; v < kTileVectors; ++v) {
          hn::Store(first[v], d, out + col + v * kLanes);
          hn::Store(second[v], d, out + kPanelCols + col + v * kLanes);
        }
      }
    }
  }
}

HWY_INLINE hn::VFromD<F32> LoadHalves(const std::byte* p, int64_t col) {
  return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(p) + col));
}

// Scales or minima of kLanes outputs from `col` on. super: what those of the super-block are multiplied by.
template <class Form>
HWY_INLINE hn::VFromD<F32> LoadScales(const std::byte* p, const std::byte* super, int64_t col) {
  if constexpr (Form::kScaleBytes == 2) return LoadHalves(p, col);
  const auto bytes = hn::LoadU(I8(), reinterpret_cast<const int8_t*>(p) + col);
  return hn::Mul(LoadHalves(super, col), hn::ConvertTo(F32(), hn::PromoteTo(I32(), bytes)));
}

template <class Codes, class Form, int kRows, int kVectors>
HWY_INLINE void Tile(const QuantizedGemm& g, int64_t row, int64_t col) {
  const F32 d;
  const int zero = g.layout.zero;
  const float* a = static_cast<const float*>(g.a) + row * g.lda;
  const bool unpacked = std::is_same_v<Codes, Unpacked>;
  const std::byte* b = unpacked ? static_cast<const std::byte*>(g.scratch) : g.b;
  const int64_t code_bytes = g.layout.code_bytes(), block_bytes = g.layout.block_bytes();
  const std::byte *at = g.b, *super = nullptr;  // the block, what stands before its super-block
  hn::VFromD<F32> total[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) total[m][v] = hn::Zero(d);
  }
  for (int64_t block = 0; block < g.blocks; ++block, at += block_bytes) {
    if constexpr (Form::kSuperBlocks > 0) {
      if (block % Form::kSuperBlocks == 0) super = std::exchange(at, at + Form::kSuperBytes);
    }
    const std::byte* const scales = at + code_bytes;
    if (!unpacked) b = at;
    hn::VFromD<F32> acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Zero(d);
    }
    for (int pair = 0; pair < Form::kPairs; ++pair, a += 2, b += Codes::kPairBytes) {
      if (!unpacked) __builtin_prefetch(b + kAhead);
      hn::VFromD<F32> first[kVectors], second[kVectors];
      Codes::Load(b, col, zero, first, second);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const auto input = hn::Set(d, a[m * g.lda]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(input, first[v], acc[m][v]);
      }
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {  // all rows again: `first` and `second` need not both be in registers
        const auto input = hn::Set(d, a[m * g.lda + 1]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(input, second[v], acc[m][v]);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto scale = LoadScales<Form>(scales, super, col + v * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) total[m][v] = hn::MulAdd(scale, acc[m][v], total[m][v]);
    }
    if constexpr (Form::kMinima) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const auto minimum =
            LoadScales<Form>(scales + 32 * Form::kScaleBytes, super + kSuperBlockBytes, col + v * kLanes);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const auto sum = hn::Set(d, g.sums[(row + m) * g.ld_sums + block]);
          total[m][v] = hn::MulAdd(minimum, sum, total[m][v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      float* c = g.c + (row + m) * g.ldc + col + v * kLanes;
      auto value = total[m][v];
      if (g.bias != nullptr) value = hn::Add(value, hn::LoadU(d, g.bias + col + v * kLanes));
      if (g.add) value = hn::Add(value, hn::LoadU(d, c));
      hn::StoreU(value, d, c);
    }
  }
}

template <class Codes, class Form, int kRows, int kVectors>
HWY_NOINLINE void Columns(const QuantizedGemm& g, int64_t row) {
  for (int64_t col = 0; col < kPanelCols; col += kVectors * kLanes) {
    Tile<Codes, Form, kRows, kVectors>(g, row, col);
  }
}

// Tiles of kRows rows, then of fewer. A row's sums are the same chain of operations whatever the tile that computes it.
template <class Codes, class Form, int kRows, int... kFewer>
HWY_INLINE void Rows(const QuantizedGemm& g, int64_t row, std::integer_sequence<int, kRows, kFewer...>) {
  constexpr int kVectors = kRows <= kThinRows ? kThinVectors : kTileVectors;
  for (; g.rows - row >= kRows; row += kRows) Columns<Codes, Form, kRows, kVectors>(g, row);
  if constexpr (sizeof...(kFewer) > 0) Rows<Codes, Form>(g, row, std::integer_sequence<int, kFewer...>());
}

void Quantized(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() {
    if (g.rows < kUnpackRows) return Rows<Packed<Form::kBits>, Form>(g, 0, TileSizes());
    Unpack<Form::kBits>(g);
    Rows<Unpacked, typename Form::OfAnyBits>(g, 0, TileSizes());
  });
}

void SetQuantized(Kernels& kernels) { kernels.quantized = Quantized; }

}  // namespace HWY_NAMESPACE
}  // namespace swiftcache::engine::backend::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace swiftcache::engine::backend::cpu {
void SetQuantizedKernels(Isa isa, Kernels& kernels) { SWIFTCACHE_DISPATCH(isa, SetQuantized, kernels); }
}  // namespace swiftcache::engine::backend::cpu
#endif
