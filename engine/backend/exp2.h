// SPDX-License-Identifier: Apache-2.0
// 2 to the power of x, as fast as a device has it. Where nvcc compiles, CMake puts another file of this name first.
#pragma once

#include <cmath>

#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend {

/// Within 2^-21 of it; what is below 2^-126 may be 0.
GPU_CODE inline float Exp2(float x) { return std::exp2(x); }

}  // namespace swiftcache::engine::backend
