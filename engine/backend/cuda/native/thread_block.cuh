// SPDX-License-Identifier: Apache-2.0
// The threads of a block on a GPU: what engine/backend/cuda/block.h says of one, with many.
//
//   __global__ void Kernel(float* x, int64_t n) {
//     ThreadBlock block;
//     Halve(block, x, n);
//   }
//
// tests/fakes/simt compiles it as C++, for emulated threads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cstdint>
#include <type_traits>

#include "engine/backend/bf16.h"
#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/native/tensor_core.cuh"

namespace swiftcache::engine::backend::cuda {

/// REQUIRES: one dimension of threads, whole warps, at most 1024.
class ThreadBlock {
 public:
  template <class F>
  __device__ void ForEach(int64_t n, F f) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    __syncthreads();
  }
  __device__ void Sync() { __syncthreads(); }
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
  template <bool transposed>
  __device__ void Multiply(const BlockMatrix<const Bf16>& a, const BlockMatrix<const Bf16>& b,
                           const BlockMatrix<float>& c, int64_t rows, int64_t cols, int64_t depth, bool add) {
    using namespace nvcuda;  // NOLINT: tensor cores
    using OfB = std::conditional_t<transposed, wmma::col_major, wmma::row_major>;
    const int64_t across = cols / kUnit, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    for (int64_t unit = warp; unit < rows / kUnit * across; unit += warps) {
      const int64_t row = unit / across * kUnit, col = unit % across * kUnit;
      wmma::fragment<wmma::accumulator, kUnit, kUnit, kUnit, float> sums;
      float* const out = c.data + row * c.stride + col;
      if (add) {
        wmma::load_matrix_sync(sums, out, static_cast<unsigned>(c.stride), wmma::mem_row_major);
      } else {
        wmma::fill_fragment(sums, 0.0f);
      }
      for (int64_t d = 0; d < depth; d += kUnit) {
        wmma::fragment<wmma::matrix_a, kUnit, kUnit, kUnit, __nv_bfloat16, wmma::row_major> of_a;
        wmma::fragment<wmma::matrix_b, kUnit, kUnit, kUnit, __nv_bfloat16, OfB> of_b;
        wmma::load_matrix_sync(of_a, Numbers(a.data + row * a.stride + d), static_cast<unsigned>(a.stride));
        wmma::load_matrix_sync(of_b, Numbers(b.data + (transposed ? col * b.stride + d : d * b.stride + col)),
                               static_cast<unsigned>(b.stride));
        wmma::mma_sync(sums, of_a, of_b, sums);
      }
      wmma::store_matrix_sync(out, sums, static_cast<unsigned>(c.stride), wmma::mem_row_major);
    }
    __syncthreads();
  }
  // Warps take turns at four runs, which the tensor cores multiply in pairs of numbers: thread 4 * r + t of a warp hands in
  // run t of outputs r and r + 8 and of row r, and has at the end the sums of these outputs and of rows 2 * t and 2 * t + 1
  // (PTX: mma.m16n8k16). It is no matter which numbers are in which pair, if they are those of weight and row alike.
  // REQUIRES: at most 8 warps.
  template <int kUnits, class Weight, class In, class Put>
  __device__ void MultiplyRuns(int64_t runs, Weight weight, In in, Put put) {
    constexpr int kRows = 8 * kUnits, kOutputs = 16, kMostWarps = 8, kRuns = 4;
    __shared__ float parts[kMostWarps][kRows][kOutputs];
    const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, r = threadIdx.x % kWarp / kRuns,
              t = threadIdx.x % kRuns;
    float sums[kUnits][4] = {};
    for (int64_t first = warp * kRuns; first < runs; first += warps * kRuns) {
      const int64_t run = first + t;
      Bf16Run a, b, x[kUnits];
      if (run < runs) {
        for (int unit = 0; unit < kUnits; ++unit) x[unit] = in(unit * 8 + r, run);
        a = weight(r, run);
        b = weight(r + 8, run);
      }
      __syncwarp();  // all of it multiplies together
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
        for (int i = 0; i < Bf16Run::kNumbers / 2; i += 2) {
          MultiplyUnit(sums[unit], {a.pairs[i], b.pairs[i], a.pairs[i + 1], b.pairs[i + 1]},
                       {x[unit].pairs[i], x[unit].pairs[i + 1]});
        }
      }
    }
    for (int unit = 0; unit < kUnits; ++unit) {
      for (int i = 0; i < 4; ++i) parts[warp][unit * 8 + 2 * t + i % 2][r + i / 2 * 8] = sums[unit][i];
    }
    __syncthreads();
    ForEach(kRows * kOutputs, [&](int64_t i) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += parts[w][i / kOutputs][i % kOutputs];
      put(i / kOutputs, i % kOutputs, sum);
    });
  }
  __device__ void BeginCopy(SixteenBytes* to, const SixteenBytes* from) { __pipeline_memcpy_async(to, from, 16); }
  __device__ void EndCopies() { __pipeline_commit(); }
  __device__ void AwaitCopies(bool but_the_last) {
    if (but_the_last) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();  // a thread waits for its own copies
  }
  // Most of a warp adds to the same few sums: those that share one are summed first, in two halves that 32 of them cannot
  // overflow. REQUIRES: value < 2^47.
  static __device__ void Add(uint64_t* sum, uint64_t value) {
    const unsigned here = __activemask(), peers = __match_any_sync(here, reinterpret_cast<uint64_t>(sum));
    const uint64_t low = __reduce_add_sync(peers, static_cast<unsigned>(value & 0xfffffu));
    const uint64_t high = __reduce_add_sync(peers, static_cast<unsigned>(value >> 20));
    if (static_cast<int>(threadIdx.x % kWarp) != __ffs(static_cast<int>(peers)) - 1) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(low + (high << 20)));
  }

 private:
  static constexpr int kWarp = 32, kUnit = 16;

  static __device__ const __nv_bfloat16* Numbers(const Bf16* numbers) {
    return reinterpret_cast<const __nv_bfloat16*>(numbers);
  }

  // Within warps, then over their results: the order of a sum does not depend on when a warp runs.
  template <class T, class Combine>
  __device__ T Reduce(T mine, T neutral, Combine combine) {
    alignas(8) __shared__ unsigned char memory[kWarp * sizeof(uint64_t)];
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
