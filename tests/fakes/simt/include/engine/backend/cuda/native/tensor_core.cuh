// SPDX-License-Identifier: Apache-2.0
// engine/backend/cuda/native/tensor_core.cuh, emulated: which lane holds what is as the PTX ISA says of mma.m16n8k16.
#pragma once

#include <cstdint>

#include "engine/backend/bf16.h"
#include "tests/fakes/simt/include/cuda_runtime.h"

namespace swiftcache::engine::backend::cuda {

inline void MultiplyUnit(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Lane {
    float* sums;
    const uint32_t *a, *b;
  };
  simt::MeetWith(~0u, "mma.m16n8k16", Lane{sums, a, b}, [](auto& lanes) {
    float of_a[16][16], of_b[16][8];
    const auto half = [](uint32_t pair, int i) { return FromBf16(static_cast<Bf16>(i == 0 ? pair : pair >> 16)); };
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane >> 2, in_group = lane % 4;
      for (int i = 0; i < 8; ++i) {
        const int row = i < 2 || (4 <= i && i < 6) ? group : group + 8, col = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        of_a[row][col] = half(lanes[lane]->a[i / 2], i % 2);
      }
      for (int i = 0; i < 4; ++i) {
        of_b[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = half(lanes[lane]->b[i / 2], i % 2);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = (lane >> 2) + (i < 2 ? 0 : 8), col = lane % 4 * 2 + (i & 1);
        for (int k = 0; k < 16; ++k) lanes[lane]->sums[i] += of_a[row][k] * of_b[k][col];
      }
    }
  });
}

}  // namespace swiftcache::engine::backend::cuda
