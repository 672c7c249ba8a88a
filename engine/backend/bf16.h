// SPDX-License-Identifier: Apache-2.0
// bf16 as the upper half of an f32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend {

using Bf16 = uint16_t;

/// Nearest, ties to even; NaN stays NaN.
GPU_CODE inline Bf16 ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Two of them, `low` at the lower address.
GPU_CODE inline uint32_t ToBf16Pair(float low, float high) {
  return static_cast<uint32_t>(ToBf16(low)) | static_cast<uint32_t>(ToBf16(high)) << 16;
}

GPU_CODE inline float FromBf16(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

/// a * b + c of pairs, each rounded once. Here that is so where f32 holds a * b + c.
GPU_CODE inline uint32_t FusedPair(uint32_t a, uint32_t b, uint32_t c) {
  const auto at = [](uint32_t pair, int i) { return FromBf16(static_cast<Bf16>(pair >> 16 * i)); };
  return ToBf16Pair(std::fma(at(a, 0), at(b, 0), at(c, 0)), std::fma(at(a, 1), at(b, 1), at(c, 1)));
}

}  // namespace swiftcache::engine::backend
