// SPDX-License-Identifier: Apache-2.0
// engine/backend/cuda/native/tensor_core.cuh, emulated: which lane holds what is as the PTX ISA says of mma.m16n8k16.
#pragma once

#include <cstdint>
#include <utility>

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

// f(square, row, column) says where a number of it comes from.
template <class F>
void LoadSquaresBy(uint32_t (&to)[4], const Bf16* row, const char* what, F f) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) simt::Die("a row of a square that is not on 16 bytes");
  simt::CheckInBlockMemory(row, 16, "a row of a square");
  struct Lane {
    uint32_t* to;
    const Bf16* row;
  };
  simt::MeetWith(~0u, what, Lane{to, row}, [&f](auto& lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int square = 0; square < 4; ++square) {
        const auto number = [&](int i) {  // of row lane / 4
          const auto [row, col] = f(lane / 4, 2 * (lane % 4) + i);
          return static_cast<uint32_t>(lanes[square * 8 + row]->row[col]);
        };
        lanes[lane]->to[square] = number(0) | number(1) << 16;
      }
    }
  });
}

inline void LoadSquares(uint32_t (&to)[4], const Bf16* row) {
  LoadSquaresBy(to, row, "ldmatrix", [](int row, int col) { return std::pair(row, col); });
}
inline void LoadSquaresTurned(uint32_t (&to)[4], const Bf16* row) {
  LoadSquaresBy(to, row, "ldmatrix.trans", [](int row, int col) { return std::pair(col, row); });
}

}  // namespace swiftcache::engine::backend::cuda
