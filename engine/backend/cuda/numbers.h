// SPDX-License-Identifier: Apache-2.0
// Numbers as a GPU's memory holds them, and what bodies of kernels compute with: f32.
//
//   const float x = Load(static_cast<const Bf16*>(row) + i);
//   Store(static_cast<float*>(out) + i, x);
#pragma once

#include "engine/backend/bf16.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

enum class Number { kF32, kBf16 };

GPU_CODE inline float Load(const float* at) { return *at; }
GPU_CODE inline float Load(const Bf16* at) { return FromBf16(*at); }
GPU_CODE inline void Store(float* at, float value) { *at = value; }
GPU_CODE inline void Store(Bf16* at, float value) { *at = ToBf16(value); }

/// f(T()) with the C++ type of the number; on the host.
template <class F>
auto WithType(Number number, F f) {
  return number == Number::kF32 ? f(float()) : f(Bf16());
}

}  // namespace swiftcache::engine::backend::cuda
