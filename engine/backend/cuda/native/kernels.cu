// SPDX-License-Identifier: Apache-2.0
// The bodies of engine/backend/cuda on a GPU: one block of threads for what a body calls a block.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/backend/cuda/native/launch.cuh"
#include "engine/backend/cuda/native/thread_block.cuh"
#include "glog/logging.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr unsigned kRowThreads = 256, kHeadThreads = 32, kTileThreads = 256, kMergeThreads = 128,
                   kProductThreads = 32 * ThreadBlock::kWarps;

__device__ int64_t RowOf(const PrepareOp& op) { return op.in_rows == nullptr ? blockIdx.x : op.in_rows[blockIdx.x]; }

template <class Out>
__global__ void PrepareKernel(PrepareOp op) {
  ThreadBlock block;
  const float* const in = static_cast<const float*>(op.in) + RowOf(op) * op.cols;
  Out* const out = static_cast<Out*>(op.out) + blockIdx.x * op.cols;
  op.prologue == Prologue::kNone ? ConvertRow(block, in, op.cols, out)
                                 : NormRow(block, in, op.norm, op.cols, op.eps, out);
}

template <class In, class Out>
__global__ void SiluMulKernel(PrepareOp op) {
  ThreadBlock block;
  SiluMulRow(block, static_cast<const In*>(op.in) + RowOf(op) * 2 * op.cols, op.cols,
             static_cast<Out*>(op.out) + blockIdx.x * op.cols);
}

__global__ void RotationsKernel(RotationsOp op) {
  ThreadBlock block;
  const int64_t row = blockIdx.x;
  RotationsRow(block, op.inverse_frequencies, op.half, op.positions[row], op.rotations + row * 2 * op.half);
}

template <class Kv>
__global__ void RopeKernel(RopeStep step) {
  ThreadBlock block;
  RopeAndStoreHead<Kv>(block, step, blockIdx.x, blockIdx.y);
}

template <class Kv>
__global__ void AttendKernel(AttendOp op) {
  ThreadBlock block;
  AttendTile<Kv>(block, reinterpret_cast<float*>(MemoryOfBlock()), op.step, op.tiles[blockIdx.x], blockIdx.y);
}

template <int kDim, int kRows>
__global__ void __launch_bounds__(kProductThreads, BlocksOfProducts(kDim, kRows)) AttendByProductsKernel(AttendOp op) {
  ThreadBlock block;
  AttendTileByProducts<kDim, kRows>(block, MemoryOfBlock(), op.step, op.tiles[blockIdx.x], blockIdx.y);
}

__global__ void MergeKernel(AttendOp op) {
  ThreadBlock block;
  const int64_t queries = op.step.queries_in_memory();
  MergeParts(block, reinterpret_cast<float*>(MemoryOfBlock()), op.step, op.divided[blockIdx.x], blockIdx.y / queries,
             blockIdx.y % queries);
}

}  // namespace

absl::Status CudaKernels::Prepare(Stream stream, const PrepareOp& op) {
  const auto launch = [&](void (*kernel)(PrepareOp)) {
    return Launch("preparing a product", stream, kernel, {.blocks = GridOf(op.rows), .threads = kRowThreads}, op);
  };
  return WithType(op.number, [&](auto out) {
    using Out = decltype(out);
    if (op.prologue != Prologue::kSiluMul) return launch(PrepareKernel<Out>);
    return WithType(op.in_number, [&](auto in) { return launch(SiluMulKernel<decltype(in), Out>); });
  });
}

absl::Status CudaKernels::Rotations(Stream stream, const RotationsOp& op) {
  return Launch("rotations", stream, RotationsKernel, {.blocks = GridOf(op.rows), .threads = kHeadThreads}, op);
}

absl::Status CudaKernels::RopeAndStore(Stream stream, const RotateOp& op) {
  const dim3 grid = GridOf(op.rows, op.step.num_heads + 2 * op.step.kv.num_kv_heads);
  return WithType(op.number, [&](auto kv) {
    return Launch("rope", stream, RopeKernel<decltype(kv)>, {.blocks = grid, .threads = kHeadThreads}, op.step);
  });
}

absl::Status CudaKernels::Attend(Stream stream, const AttendOp& op) {
  CHECK(op.num_divided == 0 || op.most_parts > 0) << "divided tiles are merged in memory for most_parts, which is 0";
  const int64_t kv_heads = op.step.kv.num_kv_heads;
  const auto launch = [&](void (*kernel)(AttendOp), unsigned threads) {
    // More than 48 KiB has to be allowed, once; doing it again costs nothing to speak of. All that there is: graphs that
    // were made with more than this launch has are launched again.
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(block_memory_bytes_));
        error != cudaSuccess) {
      return CudaStatus(error, "memory of a block of attention");
    }
    return Launch("attention", stream, kernel,
                  {.blocks = GridOf(op.num_tiles, kv_heads), .threads = threads, .bytes = op.memory_bytes}, op);
  };
  const absl::Status attended =
      op.products ? WithProductShape(op.step.kv.head_dim, op.strip_rows,
                                     [&](auto dim, auto rows) {
                                       return launch(AttendByProductsKernel<dim(), rows()>, kProductThreads);
                                     })
                  : WithType(op.number, [&](auto kv) { return launch(AttendKernel<decltype(kv)>, kTileThreads); });
  if (!attended.ok() || op.num_divided == 0) return attended;
  const int64_t queries = op.step.rows_in_memory * (op.step.num_heads / kv_heads);
  return Launch("merging attention", stream, MergeKernel,
                {.blocks = GridOf(op.num_divided, kv_heads * queries),
                 .threads = kMergeThreads,
                 .bytes = MergeBytes(op.most_parts)},
                op);
}

}  // namespace swiftcache::engine::backend::cuda
