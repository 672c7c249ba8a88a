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

#include <cuda_pipeline.h>

#include <cstdint>

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
  template <class F>
  __device__ void ForEachUnsynced(int64_t n, F f) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(n); i += kWarps * kWarp) f(i);
  }
  template <int kCount, class Get, class Use>
  __device__ void ForEachGot(Get get, Use use) {
    constexpr int kThreads = kWarps * kWarp, kRounds = kCount / kThreads;
    static_assert(kCount % kThreads == 0);
    decltype(get(0u)) got[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) got[round] = get(threadIdx.x + round * kThreads);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) use(threadIdx.x + round * kThreads, got[round]);
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
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine += f(i);
    return Reduce(mine, T{0}, [](T a, T b) { return a + b; });
  }
  template <class T, class F>
  __device__ T Max(int64_t n, T lowest, F f) {
    T mine = lowest;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const T value = static_cast<T>(f(i));
      if (value > mine) mine = value;
    }
    return Reduce(mine, lowest, [](T a, T b) { return b > a ? b : a; });
  }
  // Strips lie as mma.m16n8k16 has its sums (tensor_core.cuh), 16 rows after the other: unit j is columns from 8 * j on.
  // REQUIRES for all of them: kWarps warps.
  static constexpr int kWarps = 4;
  template <class T>
  using OfWarps = T;
  template <class T, class F>
  __device__ void EachWarp(T& mine, F f) {
    f(static_cast<int>(threadIdx.x) / kWarp, mine);
  }
  template <int kRows, int kCols>
  struct Strip {
    static constexpr int kOwnRows = kRows / 8, kUnits = kCols / 8;
    float units[kRows / 16][kUnits][4];
  };
  static __device__ int RowOf(int own) { return Lane() / 4 + 8 * own; }
  template <class AnyStrip, class F>
  static __device__ void Each(AnyStrip& strip, F f) {
    const int first = Lane() % 4 * 2;
#pragma unroll
    for (int own = 0; own < AnyStrip::kOwnRows; ++own) {
#pragma unroll
      for (int i = 0; i < 2 * AnyStrip::kUnits; ++i) {
        f(own, i / 2 * 8 + first + i % 2, strip.units[own / 2][i / 2][own % 2 * 2 + i % 2]);
      }
    }
  }
  static __device__ float MaxOfRow(float mine) {
    return OfRow(mine, [](float a, float b) { return fmaxf(a, b); });
  }
  static __device__ float SumOfRow(float mine) {
    return OfRow(mine, [](float a, float b) { return a + b; });
  }
  static __device__ bool AnyOfWarp(bool mine) { return __any_sync(kAll, mine) != 0; }
  // In registers where there is room for them beside the sums of a strip with as many columns.
  template <int kRows, int kMostDepth>
  struct HeldRows {
    static constexpr bool kKept = kRows == 16 && kMostDepth <= 128;
    BlockMatrix<const Bf16> rows;
    uint32_t squares[kKept ? kMostDepth / 16 : 1][kRows / 16][4];
  };
  template <int kRows, int kMostDepth>
  static __device__ void HoldRows(HeldRows<kRows, kMostDepth>& to, const BlockMatrix<const Bf16>& rows, int depth) {
    to.rows = rows;
    if constexpr (HeldRows<kRows, kMostDepth>::kKept) {
#pragma unroll
      for (int d = 0; d < kMostDepth; d += 16) {
        if (d < depth) LoadRows(to.squares[d / 16], rows, d);
      }
    }
  }
  template <int kRows, int kMostDepth, int kCols>
  static __device__ void MultiplyStrip(Strip<kRows, kCols>& out, HeldRows<kRows, kMostDepth>& a,
                                       const BlockMatrix<const Bf16>& b, int depth) {
    const int lane = Lane(), in_square = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    const Bf16* const from_b = b.data + (high + in_square) * b.stride + low;
    Each(out, [](int own, int col, float& sum) { sum = 0; });
    InSixteens<kMostDepth>(depth, [&](int d) {
      auto& of_a = a.squares[a.kKept ? d / 16 : 0];
      if constexpr (!HeldRows<kRows, kMostDepth>::kKept) LoadRows(of_a, a.rows, d);
#pragma unroll
      for (int j = 0; j < kCols / 8; j += 2) {
        uint32_t of_b[4];
        LoadSquares(of_b, from_b + j * 8 * b.stride + d);
#pragma unroll
        for (int r = 0; r < kRows / 16; ++r) {
          MultiplyUnit(out.units[r][j], of_a[r], {of_b[0], of_b[1]});
          MultiplyUnit(out.units[r][j + 1], of_a[r], {of_b[2], of_b[3]});
        }
      }
    });
  }
  template <int kRows, int kCols, int kDepth>
  static __device__ void AddProduct(Strip<kRows, kCols>& sums, const Strip<kRows, kDepth>& a,
                                    const BlockMatrix<const Bf16>& b, int cols) {
    const int lane = Lane(), in_square = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    const Bf16* const from_b = b.data + (low + in_square) * b.stride + high;
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      uint32_t of_a[kRows / 16][4];
#pragma unroll
      for (int r = 0; r < kRows / 16; ++r) {
        // Sums of one product, two units of them, lie as the rows of the next one have to.
        const auto &left = a.units[r][d / 8], &right = a.units[r][d / 8 + 1];
        of_a[r][0] = ToBf16Pair(left[0], left[1]), of_a[r][1] = ToBf16Pair(left[2], left[3]);
        of_a[r][2] = ToBf16Pair(right[0], right[1]), of_a[r][3] = ToBf16Pair(right[2], right[3]);
      }
      InSixteens<kCols>(cols, [&](int col) {
        const int j = col / 8;
        uint32_t of_b[4];
        LoadSquaresTurned(of_b, from_b + d * b.stride + col);
#pragma unroll
        for (int r = 0; r < kRows / 16; ++r) {
          MultiplyUnit(sums.units[r][j], of_a[r], {of_b[0], of_b[1]});
          MultiplyUnit(sums.units[r][j + 1], of_a[r], {of_b[2], of_b[3]});
        }
      });
    }
  }
  // Warps take turns at four runs, which the tensor cores multiply in pairs of numbers: thread 4 * r + t of a warp hands in
  // run t of outputs r and r + 8 and of row r, and has at the end the sums of these outputs and of rows 2 * t and 2 * t + 1
  // (PTX: mma.m16n8k16). It is no matter which numbers are in which pair, if they are those of weight and row alike.
  // REQUIRES: at most 8 warps.
  template <int kUnits, class Stored, class Decode, class In, class Put>
  __device__ void MultiplyRuns(int64_t runs, Stored stored, Decode decode, In in, Put put) {
    constexpr int kRows = 8 * kUnits, kOutputs = 16, kMostWarps = 8, kRuns = 4;
    __shared__ float parts[kMostWarps][kRows][kOutputs];
    const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, r = threadIdx.x % kWarp / kRuns,
              t = threadIdx.x % kRuns;
    float sums[kUnits][4] = {};
    decltype(stored(r, 0)) here[2] = {}, next[2] = {};  // of output r and of r + 8
    const auto read = [&](int64_t run, auto& to) {
      if (run < runs) to[0] = stored(r, run), to[1] = stored(r + 8, run);
    };
    read(warp * kRuns + t, here);
    for (int64_t first = warp * kRuns; first < runs; first += warps * kRuns) {
      const int64_t run = first + t;
      read(run + warps * kRuns, next);
      Bf16Run a, b;
      if (run < runs) a = decode(here[0]), b = decode(here[1]);
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        Bf16Run x;
        if (run < runs) x = in(unit * 8 + r, run);
        __syncwarp();  // all of it multiplies together
#pragma unroll
        for (int i = 0; i < Bf16Run::kNumbers / 2; i += 2) {
          MultiplyUnit(sums[unit], {a.pairs[i], b.pairs[i], a.pairs[i + 1], b.pairs[i + 1]},
                       {x.pairs[i], x.pairs[i + 1]});
        }
      }
      here[0] = next[0], here[1] = next[1];
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
  __device__ void AwaitCopies(size_t but) {
    if (but == 0) {  // the instruction has the number in it
      __pipeline_wait_prior(0);
    } else {  // kMostBuffers leave no more than one; whoever left more would wait for more than he asked
      __pipeline_wait_prior(1);
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
  static __device__ void Count(uint32_t* count) {
    const unsigned peers = __match_any_sync(__activemask(), reinterpret_cast<uint64_t>(count));
    if (static_cast<int>(threadIdx.x % kWarp) != __ffs(static_cast<int>(peers)) - 1) return;
    atomicAdd(count, static_cast<uint32_t>(__popc(peers)));
  }
  static __device__ void Keep(int32_t* kept, int32_t value) { atomicExch(kept, value); }

 private:
  static constexpr int kWarp = 32;
  static constexpr unsigned kAll = 0xffffffffu;

  static __device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  // f(i) for the multiples of 16 below n, which is at most kMost. Where it is that, nothing is asked between one and the next,
  // so that the compiler moves what they load ahead of what they multiply.
  template <int kMost, class F>
  static __device__ void InSixteens(int n, F f) {
    if (n == kMost) {
#pragma unroll
      for (int i = 0; i < kMost; i += 16) f(i);
      return;
    }
#pragma unroll
    for (int i = 0; i < kMost; i += 16) {
      if (i >= n) break;
      f(i);
    }
  }
  // Columns d to d + 15 of a strip's rows, as mma.m16n8k16 has its left operand.
  template <int kUnits>
  static __device__ void LoadRows(uint32_t (&to)[kUnits][4], const BlockMatrix<const Bf16>& rows, int d) {
    const int lane = Lane();
#pragma unroll
    for (int r = 0; r < kUnits; ++r) {
      LoadSquares(to[r], rows.data + (r * 16 + lane % 16) * rows.stride + lane / 16 * 8 + d);
    }
  }
  // Four lanes that follow each other have a row of a strip.
  template <class Combine>
  static __device__ float OfRow(float mine, Combine combine) {
    mine = combine(mine, __shfl_xor_sync(kAll, mine, 1));
    return combine(mine, __shfl_xor_sync(kAll, mine, 2));
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
      mine = combine(mine, __shfl_down_sync(kAll, mine, distance));
    }
    return mine;
  }
};

}  // namespace swiftcache::engine::backend::cuda
