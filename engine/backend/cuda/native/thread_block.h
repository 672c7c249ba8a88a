// SPDX-License-Identifier: Apache-2.0
// The threads of a block on a GPU: what engine/backend/cuda/block.h says of one, with many.
//
//   __global__ void Kernel(float* x, int64_t n) {
//     ThreadBlock block;
//     Halve(block, x, n);
//   }
#pragma once

#include <cstdint>

namespace swiftcache::engine::backend::cuda {

/// REQUIRES: one dimension of threads, whole warps, at most 1024.
class ThreadBlock {
 public:
  template <class F>
  __device__ void ForEach(int64_t n, F f) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    __syncthreads();
  }
  template <class F>
  __device__ void Once(F f) {
    if (threadIdx.x == 0) f();
    __syncthreads();
  }
  template <class T, class F>
  __device__ T Sum(int64_t n, F f) {
    T mine = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine += f(i);
    return Reduce(mine, T{0}, [](T a, T b) { return a + b; });
  }
  template <class T, class F>
  __device__ T Max(int64_t n, T lowest, F f) {
    T mine = lowest;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const T value = static_cast<T>(f(i));
      if (value > mine) mine = value;
    }
    return Reduce(mine, lowest, [](T a, T b) { return b > a ? b : a; });
  }
  static __device__ void Add(uint64_t* sum, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
  }

 private:
  static constexpr int kWarp = 32;

  // Within warps, then over their results: the order of a sum does not depend on when a warp runs.
  template <class T, class Combine>
  __device__ T Reduce(T mine, T neutral, Combine combine) {
    __shared__ alignas(8) unsigned char memory[kWarp * sizeof(uint64_t)];
    T* const results = reinterpret_cast<T*>(memory);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    mine = ReduceWarp(mine, combine);
    if (lane == 0) results[warp] = mine;
    __syncthreads();
    if (warp == 0) {
      mine = lane < static_cast<int>(blockDim.x) / kWarp ? results[lane] : neutral;
      mine = ReduceWarp(mine, combine);
      if (lane == 0) results[0] = mine;
    }
    __syncthreads();
    const T result = results[0];
    __syncthreads();  // before the next reduction writes there
    return result;
  }
  template <class T, class Combine>
  static __device__ T ReduceWarp(T mine, Combine combine) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      mine = combine(mine, __shfl_down_sync(0xffffffffu, mine, distance));
    }
    return mine;
  }
};

}  // namespace swiftcache::engine::backend::cuda
