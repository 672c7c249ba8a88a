// SPDX-License-Identifier: Apache-2.0
// engine/backend/exp2.h, where nvcc compiles: one instruction.
#pragma once

#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend {

GPU_CODE inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

}  // namespace swiftcache::engine::backend
