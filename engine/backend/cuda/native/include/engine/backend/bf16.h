// SPDX-License-Identifier: Apache-2.0
// engine/backend/bf16.h, where nvcc compiles: an instruction rounds. Which NaN a NaN becomes is its own.
#pragma once

#include <cuda_bf16.h>

#include <bit>
#include <cstdint>

#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend {

using Bf16 = uint16_t;

GPU_CODE inline Bf16 ToBf16(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
GPU_CODE inline uint32_t ToBf16Pair(float low, float high) {
  return std::bit_cast<uint32_t>(static_cast<__nv_bfloat162_raw>(__floats2bfloat162_rn(low, high)));
}
GPU_CODE inline float FromBf16(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
GPU_CODE inline uint32_t FusedPair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t fused;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(fused) : "r"(a), "r"(b), "r"(c));
  return fused;
}

}  // namespace swiftcache::engine::backend
