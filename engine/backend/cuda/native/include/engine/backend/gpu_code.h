// SPDX-License-Identifier: Apache-2.0
// The marks of engine/backend/gpu_code.h, where nvcc compiles.
#pragma once

#define GPU_CODE __device__
#define GPU_PRAGMA(text) _Pragma(#text)
#define GPU_UNROLL(rounds) GPU_PRAGMA(unroll rounds)
