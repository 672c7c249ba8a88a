// SPDX-License-Identifier: Apache-2.0
// The mark of engine/backend/gpu_code.h, where nvcc compiles.
#pragma once

#define GPU_CODE __device__
