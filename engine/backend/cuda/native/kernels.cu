// SPDX-License-Identifier: Apache-2.0
// The bodies of engine/backend/cuda on a GPU: one block of threads for what a body calls a block.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/backend/cuda/native/launch.cuh"
#include "engine/backend/cuda/native/thread_block.cuh"
#include "engine/backend/cuda/native/warp_block.cuh"
#include "engine/backend/cuda/one_row_body.h"
#include "glog/logging.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr unsigned kRowThreads = 256, kMostRowThreads = 1024, kRotationThreads = 32, kTileThreads = 256,
                   kMergeThreads = 128, kProductThreads = 32 * ThreadBlock::kWarps;
constexpr unsigned kWarps = 8;              // of a block, where each has something of its own to do
constexpr int64_t kSiluColumns = 2048;      // of a block
constexpr int64_t kRowsThatFillAGpu = 512;  // with blocks of kRowThreads

// A few rows have many threads each, so that each waits for memory once.
unsigned RowThreads(int64_t rows, int64_t cols) {
  if (rows >= kRowsThatFillAGpu) return kRowThreads;
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv(cols / 4, 32) * 32, kRowThreads, kMostRowThreads));
}

template <class Out>
__global__ void __launch_bounds__(kMostRowThreads) PrepareKernel(PrepareOp op) {
  ThreadBlock block;
  const float* const in = static_cast<const float*>(op.in) + blockIdx.x * op.cols;
  Out* const out = static_cast<Out*>(op.out) + blockIdx.x * op.cols;
  op.prologue == Prologue::kNone ? ConvertRow(block, in, op.cols, out)
                                 : NormRow(block, in, op.norm, op.cols, op.eps, out);
}

template <class In, class Out>
__global__ void SiluMulKernel(PrepareOp op) {
  ThreadBlock block;
  const int64_t first = blockIdx.y * kSiluColumns, left = op.cols - first;
  SiluMulRow(block, static_cast<const In*>(op.in) + blockIdx.x * 2 * op.cols, op.cols, first,
             left < kSiluColumns ? left : kSiluColumns, static_cast<Out*>(op.out) + blockIdx.x * op.cols);
}

__global__ void OneRowKernel(ProductOp op) {
  WarpBlock warp;
  const int64_t output = int64_t{blockIdx.x} * kWarps + threadIdx.x / WarpBlock::kThreads;
  if (output < op.outputs) MultiplyOneRow(warp, op, output);
}

template <class T>
__global__ void KeepKernel(KeepOp op) {
  ThreadBlock block;
  const int64_t first = int64_t{blockIdx.x} * kRowThreads, left = op.cols - first;
  KeepRowsOfColumns(block, op.rows, op.num_rows, static_cast<T*>(op.data), op.cols, first,
                    left < kRowThreads ? left : kRowThreads);
}

__global__ void RotationsKernel(RotationsOp op) {
  ThreadBlock block;
  const int64_t row = blockIdx.x;
  RotationsRow(block, op.inverse_frequencies, op.half, op.positions[row], op.rotations + row * 2 * op.half);
}

template <class Kv>
__global__ void RopeKernel(RopeStep step) {
  WarpBlock warp;
  const int64_t head = blockIdx.y * kWarps + threadIdx.x / WarpBlock::kThreads;
  if (head < step.num_heads + 2 * step.kv.num_kv_heads) RopeAndStoreHead<Kv>(warp, step, blockIdx.x, head);
}

// A copy, in registers. All heads of the longest tiles come first.
struct TileOfHead {
  AttentionTile tile;
  int64_t kv_head;
};
__device__ TileOfHead TileOf(const AttendOp& op) {
  const auto kv_heads = static_cast<unsigned>(op.step.kv.num_kv_heads);
  return {op.tiles[blockIdx.x / kv_heads], blockIdx.x % kv_heads};
}

template <class Kv>
__global__ void AttendKernel(AttendOp op) {
  ThreadBlock block;
  const auto [tile, kv_head] = TileOf(op);
  AttendTile<Kv>(block, reinterpret_cast<float*>(MemoryOfBlock()), op.step, tile, kv_head);
}

template <int kDim, int kRows>
__global__ void __launch_bounds__(kProductThreads, BlocksOfProducts(kDim, kRows)) AttendByProductsKernel(AttendOp op) {
  ThreadBlock block;
  const auto [tile, kv_head] = TileOf(op);
  AttendTileByProducts<kDim, kRows>(block, MemoryOfBlock(), op.step, tile, kv_head);
}

__global__ void MergeKernel(AttendOp op) {
  ThreadBlock block;
  const int64_t queries = op.step.queries_in_memory();
  MergeParts(block, reinterpret_cast<float*>(MemoryOfBlock()), op.step, op.divided[blockIdx.x], blockIdx.y / queries,
             blockIdx.y % queries);
}

// More than 48 KiB has to be allowed, once; doing it again costs nothing to speak of. Always the most, since a graph that was
// made earlier may want more than this launch. Blocks by products that are to run at once want nearly all memory that a
// multiprocessor has.
cudaError_t AllowMemory(void (*kernel)(AttendOp), int bytes, bool products) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess || !products) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

}  // namespace

absl::Status CudaKernels::Prepare(Stream stream, const PrepareOp& op) {
  const auto launch = [&](void (*kernel)(PrepareOp), const LaunchShape& shape) {
    return Launch("preparing a product", stream, kernel, shape, op);
  };
  const LaunchShape by_rows = {.blocks = GridOf(op.rows), .threads = RowThreads(op.rows, op.cols)},
                    by_columns = {.blocks = GridOf(op.rows, CeilDiv(op.cols, kSiluColumns)), .threads = kRowThreads};
  return WithType(op.number, [&](auto out) {
    using Out = decltype(out);
    if (op.prologue != Prologue::kSiluMul) return launch(PrepareKernel<Out>, by_rows);
    return WithType(op.in_number, [&](auto in) { return launch(SiluMulKernel<decltype(in), Out>, by_columns); });
  });
}

absl::Status CudaKernels::Multiply(Stream stream, const ProductOp& op) {
  if (!IsOneRow(op)) return products_->Multiply(stream, op);
  return Launch("a product of one row", stream, OneRowKernel,
                {.blocks = GridOf(CeilDiv(op.outputs, kWarps)), .threads = kWarps * WarpBlock::kThreads}, op);
}

absl::Status CudaKernels::Keep(Stream stream, const KeepOp& op) {
  const LaunchShape shape = {.blocks = GridOf(CeilDiv(op.cols, kRowThreads)), .threads = kRowThreads};
  return WithType(op.number,
                  [&](auto number) { return Launch("keeping rows", stream, KeepKernel<decltype(number)>, shape, op); });
}

absl::Status CudaKernels::Rotations(Stream stream, const RotationsOp& op) {
  return Launch("rotations", stream, RotationsKernel, {.blocks = GridOf(op.rows), .threads = kRotationThreads}, op);
}

absl::Status CudaKernels::RopeAndStore(Stream stream, const RotateOp& op) {
  const LaunchShape shape = {
      .blocks = GridOf(op.rows, CeilDiv(op.step.num_heads + 2 * op.step.kv.num_kv_heads, kWarps)),
      .threads = kWarps * WarpBlock::kThreads};
  return WithType(op.number, [&](auto kv) { return Launch("rope", stream, RopeKernel<decltype(kv)>, shape, op.step); });
}

absl::Status CudaKernels::Attend(Stream stream, const AttendOp& op) {
  CHECK(op.num_divided == 0 || op.most_parts > 0) << "divided tiles are merged in memory for most_parts, which is 0";
  const int64_t kv_heads = op.step.kv.num_kv_heads;
  const auto launch = [&](void (*kernel)(AttendOp), unsigned threads) {
    RETURN_IF_ERROR(CudaStatus(AllowMemory(kernel, static_cast<int>(block_memory_bytes_), op.products),
                               "memory of a block of attention"));
    return Launch("attention", stream, kernel,
                  {.blocks = GridOf(op.num_tiles * kv_heads), .threads = threads, .bytes = op.memory_bytes}, op);
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
