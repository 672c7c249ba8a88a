// SPDX-License-Identifier: Apache-2.0
// Marks functions that run on a GPU too. Here they are the host's. Where nvcc compiles, CMake puts another file of this
// name first (cuda/native/include), in which the mark has a meaning: so the same source is tested on machines without a
// GPU, and no source asks who compiles it.
//
//   GPU_CODE inline float Half(float x) { return x / 2; }
#pragma once

#define GPU_CODE
/// Before a loop: so many rounds of it one after the other, so that what they read is on its way at once.
#define GPU_UNROLL(rounds)
