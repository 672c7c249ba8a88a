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
constexpr int kThinRows = HWY_MAX_BYTES == 64 ? 3 : 2;  // as wide as one row: a panel is read and unpacked once
constexpr int64_t kUnpackRows = 4 * kTileRows;          // from which on it costs less to unpack a panel once
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

// Of the first or second input of the pair, less the zero.
template <int kBits, bool kSecond>
HWY_INLINE hn::VFromD<F32> Weights(hn::VFromD<U32> words, hn::VFromD<I32> zero) {
  if constexpr (kBits == 8) {
    const auto high = hn::BitCast(I32(), hn::ShiftLeft < kSecond ? 16 : 24 > (words));
    return hn::ConvertTo(F32(), hn::ShiftRight<24>(high));
  } else {
    const auto code = hn::And(kSecond ? hn::ShiftRight<8>(words) : words, hn::Set(U32(), (1u << kBits) - 1));
    return hn::ConvertTo(F32(), hn::Sub(hn::BitCast(I32(), code), zero));
  }
}

// How a tile gets the weights of a pair of inputs, for kLanes outputs from `col` on.
template <int kBits>
struct Packed {
  static constexpr int64_t kPairBytes = 8 * kBits;
  static HWY_INLINE void Load(const std::byte* pair, int64_t col, hn::VFromD<I32> zero, hn::VFromD<F32>& first,
                              hn::VFromD<F32>& second) {
    const auto words = LoadCodes<kBits>(pair, col);
    first = Weights<kBits, false>(words, zero);
    second = Weights<kBits, true>(words, zero);
  }
};

// f32 [2][32]
struct Unpacked {
  static constexpr int64_t kPairBytes = 2 * kPanelCols * sizeof(float);
  static HWY_INLINE void Load(const std::byte* pair, int64_t col, hn::VFromD<I32>, hn::VFromD<F32>& first,
                              hn::VFromD<F32>& second) {
    const auto* values = reinterpret_cast<const float*>(pair) + col;
    first = hn::Load(F32(), values);
    second = hn::Load(F32(), values + kPanelCols);
  }
};

template <int kBits>
HWY_NOINLINE void Unpack(const QuantizedGemm& g) {
  const F32 d;
  const auto zero = hn::Set(I32(), g.layout.zero);
  auto* out = static_cast<float*>(g.scratch);
  for (int64_t block = 0; block < g.blocks; ++block) {
    const std::byte* b = g.b + g.layout.block_at(block);
    for (int pair = 0; pair < g.layout.inputs / 2; ++pair, b += Packed<kBits>::kPairBytes, out += 2 * kPanelCols) {
      for (int64_t col = 0; col < kPanelCols; col += kLanes) {
        hn::VFromD<F32> first, second;
        Packed<kBits>::Load(b, col, zero, first, second);
        hn::Store(first, d, out + col);
        hn::Store(second, d, out + kPanelCols + col);
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
  const auto zero = hn::Set(I32(), g.layout.zero);
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
      hn::VFromD<F32> first[kVectors], second[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        Codes::Load(b, col + v * kLanes, zero, first[v], second[v]);
      }
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const auto a0 = hn::Set(d, a[m * g.lda]), a1 = hn::Set(d, a[m * g.lda + 1]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(a0, first[v], acc[m][v]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(a1, second[v], acc[m][v]);
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

// A row's sums are the same chain of operations whatever the tile that computes it.
template <class Codes, class Form>
HWY_INLINE void Rows(const QuantizedGemm& g) {
  int64_t row = 0;
  for (; g.rows - row >= kTileRows; row += kTileRows) Columns<Codes, Form, kTileRows, kTileVectors>(g, row);
  for (; g.rows - row >= kTileRows / 2; row += kTileRows / 2) {
    Columns<Codes, Form, kTileRows / 2, kTileVectors>(g, row);
  }
  for (; g.rows - row >= kThinRows; row += kThinRows) Columns<Codes, Form, kThinRows, kThinVectors>(g, row);
  for (; row < g.rows; ++row) Columns<Codes, Form, 1, kThinVectors>(g, row);
}

void Quantized(const QuantizedGemm& g) {
  WithForm(g.layout, [&]<class Form>() {
    if (g.rows < kUnpackRows) return Rows<Packed<Form::kBits>, Form>(g);
    Unpack<Form::kBits>(g);
    Rows<Unpacked, typename Form::OfAnyBits>(g);
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
