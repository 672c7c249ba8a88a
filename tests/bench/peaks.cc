// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/peaks.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,amx-tile,amx-bf16")
#include "engine/backend/cpu/amx_tiles.h"
HWY_POP_ATTRIBUTES

namespace swiftcache {
namespace {

using engine::backend::cpu::Isa;

constexpr int kChains = 12;  // sums that do not wait for each other: they hide the latency and fit the registers

// `step` makes the next `sum` of sum, a and b. The compiler sees neither that all are zero nor that a and b stay.
#define SWIFTCACHE_PEAK(name, instructions, Vector, zero, step)                                   \
  __attribute__((target(instructions))) void name(int64_t n) {                                    \
    Vector a = zero, b = zero, sums[kChains];                                                     \
    asm("" : "+v"(a), "+v"(b));                                                                   \
    _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) sums[i] = zero;                    \
    for (; n > 0; --n) {                                                                          \
      _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) {                                \
        Vector& sum = sums[i];                                                                    \
        sum = step;                                                                               \
        asm("" : "+v"(sum), "+v"(a));                                                             \
      }                                                                                           \
    }                                                                                             \
    _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) asm volatile("" : : "v"(sums[i])); \
  }

SWIFTCACHE_PEAK(Fma512, "avx512f", __m512, _mm512_setzero_ps(), _mm512_fmadd_ps(a, b, sum))
SWIFTCACHE_PEAK(Fma256, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_fmadd_ps(a, b, sum))
SWIFTCACHE_PEAK(Bf16Dot512, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(),
                _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b))
SWIFTCACHE_PEAK(IntDot512, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(sum, a, b))
SWIFTCACHE_PEAK(IntDot256, "avx2,avxvnni", __m256i, _mm256_setzero_si256(), _mm256_dpbusd_avx_epi32(sum, a, b))
SWIFTCACHE_PEAK(IntPairs512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(),
                _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), a)))
SWIFTCACHE_PEAK(IntPairs256, "avx2", __m256i, _mm256_setzero_si256(),
                _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), a)))
SWIFTCACHE_PEAK(Int4Pairs512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(),
                _mm512_add_epi16(sum, _mm512_maddubs_epi16(a, b)))
SWIFTCACHE_PEAK(Int4Pairs256, "avx2", __m256i, _mm256_setzero_si256(),
                _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b)))

#undef SWIFTCACHE_PEAK

// Of tiles of 16 rows, 32 inputs and 16 outputs, into four tiles of sums.
constexpr int64_t kTileMultiplyAdds = 4 * 16 * 32 * 16;
__attribute__((target("avx512f,amx-tile,amx-bf16"))) void TileDot(int64_t n) {
  engine::backend::cpu::ShapeTiles<16>(16);
  for (; n > 0; --n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Of kChains instructions, each with so many multiply-adds.
constexpr int64_t Operations(int64_t multiply_adds) { return 2 * kChains * multiply_adds; }

}  // namespace

const char* NameOf(Arithmetic arithmetic) {
  constexpr const char* kNames[] = {"f32", "bf16", "int8"};
  return kNames[static_cast<int>(arithmetic)];
}

Peak PeakOf(Isa isa, Arithmetic arithmetic, int bits) {
  const bool wide = isa >= Isa::kAvx512;
  if (arithmetic == Arithmetic::kF32) return wide ? Peak{Fma512, Operations(16)} : Peak{Fma256, Operations(8)};
  if (arithmetic == Arithmetic::kBf16 && isa == Isa::kAmx) return {TileDot, 2 * kTileMultiplyAdds};
  if (arithmetic == Arithmetic::kBf16) return {Bf16Dot512, Operations(32)};
  if (isa >= Isa::kAvx512Vnni) return {IntDot512, Operations(64)};
  if (isa == Isa::kAvxVnni) return {IntDot256, Operations(32)};
  if (wide) return {bits == 4 ? Int4Pairs512 : IntPairs512, Operations(64)};
  return {bits == 4 ? Int4Pairs256 : IntPairs256, Operations(32)};
}

}  // namespace swiftcache
