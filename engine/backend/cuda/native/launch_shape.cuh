// SPDX-License-Identifier: Apache-2.0
// With how many threads a kernel is launched, on a GPU (launch.cuh) or emulated.
//
//   const LaunchShape shape = {.blocks = GridOf(op.rows), .threads = 32};
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace swiftcache::engine::backend::cuda {

inline dim3 GridOf(int64_t x, int64_t y = 1) { return {static_cast<unsigned>(x), static_cast<unsigned>(y)}; }

struct LaunchShape {
  dim3 blocks;
  unsigned threads = 1;  // of a block
  int64_t bytes = 0;     // of MemoryOfBlock()
};

}  // namespace swiftcache::engine::backend::cuda
