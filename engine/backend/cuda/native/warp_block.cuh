// SPDX-License-Identifier: Apache-2.0
// A warp as what engine/backend/cuda/block.h says of a block: for bodies that are too small for more threads.
//
//   WarpBlock warp;
//   if (head < heads) RopeAndStoreHead<Bf16>(warp, step, row, head);
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace swiftcache::engine::backend::cuda {

/// REQUIRES: one dimension of threads, whole warps; all of the warp calls.
class WarpBlock {
 public:
  static constexpr unsigned kThreads = 32;

  template <class F>
  __device__ void ForEach(int64_t n, F f) {
    for (int64_t i = Lane(); i < n; i += kThreads) f(i);
    __syncwarp();
  }
  template <class F>
  __device__ void Once(F f) {
    if (Lane() == 0) f();
    __syncwarp();
  }
  template <class T, class F>
  __device__ T Sum(int64_t n, F f) {
    T mine = 0;
#pragma unroll 4
    for (int64_t i = Lane(); i < n; i += kThreads) mine += f(i);
    for (unsigned distance = kThreads / 2; distance > 0; distance /= 2) {
      mine += __shfl_xor_sync(0xffffffffu, mine, distance);
    }
    return mine;
  }

 private:
  static __device__ unsigned Lane() { return threadIdx.x % kThreads; }
};

}  // namespace swiftcache::engine::backend::cuda
