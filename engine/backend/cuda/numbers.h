// SPDX-License-Identifier: Apache-2.0
// Numbers as a GPU's memory holds them, and what bodies of kernels compute with: f32.
//
//   const float x = Load(static_cast<const Bf16*>(row) + i);
//   Store(static_cast<float*>(out) + i, x);
#pragma once

#include <cstdint>

#include "engine/backend/bf16.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

enum class Number { kF32, kBf16 };

GPU_CODE inline float Load(const float* at) { return *at; }
GPU_CODE inline float Load(const Bf16* at) { return FromBf16(*at); }
GPU_CODE inline void Store(float* at, float value) { *at = value; }
GPU_CODE inline void Store(Bf16* at, float value) { *at = ToBf16(value); }

/// What is read at once where rows begin on as many bytes: 16 of f32, 8 of bf16.
struct alignas(16) Four {
  float x[4] = {};
};
GPU_CODE inline Four LoadFour(const float* at) { return *reinterpret_cast<const Four*>(at); }
GPU_CODE inline Four LoadFour(const Bf16* at) {
  const uint64_t bits = *reinterpret_cast<const uint64_t*>(at);
  Four four;
  for (int i = 0; i < 4; ++i) four.x[i] = FromBf16(static_cast<Bf16>(bits >> 16 * i));
  return four;
}
GPU_CODE inline void StoreFour(float* at, const Four& four) { *reinterpret_cast<Four*>(at) = four; }
GPU_CODE inline void StoreFour(Bf16* at, const Four& four) {
  *reinterpret_cast<uint64_t*>(at) = ToBf16Pair(four.x[0], four.x[1]) | uint64_t{ToBf16Pair(four.x[2], four.x[3])}
                                                                            << 32;
}

/// f(T()) with the C++ type of the number; on the host.
template <class F>
auto WithType(Number number, F f) {
  return number == Number::kF32 ? f(float()) : f(Bf16());
}

}  // namespace swiftcache::engine::backend::cuda
