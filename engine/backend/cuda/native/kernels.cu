// SPDX-License-Identifier: Apache-2.0
// The bodies of engine/backend/cuda on a GPU: one block of threads for what a body calls a block.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/backend/cuda/native/thread_block.cuh"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int kRowThreads = 256, kHeadThreads = 32, kTileThreads = 256;
constexpr int64_t kSmallMemory = 54 << 10;  // of which a multiprocessor of an A100 has three

template <class Out>
__global__ void PrepareKernel(PrepareOp op) {
  ThreadBlock block;
  const int64_t row = blockIdx.x, from = op.in_rows == nullptr ? row : op.in_rows[row];
  Out* const out = static_cast<Out*>(op.out) + row * op.cols;
  switch (op.prologue) {
    case Prologue::kNone:
      return ConvertRow(block, op.in + from * op.cols, op.cols, out);
    case Prologue::kRmsNorm:
      return NormRow(block, op.in + from * op.cols, op.norm, op.cols, op.eps, out);
    case Prologue::kSiluMul:
      return SiluMulRow(block, op.in + from * 2 * op.cols, op.cols, out);
  }
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
  extern __shared__ __align__(128) std::byte memory[];
  ThreadBlock block;
  AttendTile<Kv>(block, reinterpret_cast<float*>(memory), op.step, op.tiles[blockIdx.x], blockIdx.y);
}

// kBlocks: so many are to run on a multiprocessor at once, so that some compute while others wait for K and V.
template <int kBlocks>
__global__ void __launch_bounds__(kTileThreads, kBlocks) AttendByProductsKernel(AttendOp op) {
  extern __shared__ __align__(128) std::byte memory[];
  ThreadBlock block;
  AttendTileByProducts(block, memory, op.step, op.tiles[blockIdx.x], blockIdx.y);
}

__global__ void MergeKernel(AttendOp op) {
  ThreadBlock block;
  MergeParts(block, op.step, op.divided[blockIdx.x], blockIdx.y);
}

unsigned Grid(int64_t blocks) { return static_cast<unsigned>(blocks); }
cudaStream_t Of(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

}  // namespace

absl::Status CudaKernels::Prepare(Stream stream, const PrepareOp& op) {
  return WithType(op.number, [&](auto number) {
    PrepareKernel<decltype(number)><<<Grid(op.rows), kRowThreads, 0, Of(stream)>>>(op);
    return CudaStatus(cudaGetLastError(), "preparing a product");
  });
}

absl::Status CudaKernels::Rotations(Stream stream, const RotationsOp& op) {
  RotationsKernel<<<Grid(op.rows), kHeadThreads, 0, Of(stream)>>>(op);
  return CudaStatus(cudaGetLastError(), "rotations");
}

absl::Status CudaKernels::RopeAndStore(Stream stream, const RotateOp& op) {
  const dim3 grid(Grid(op.rows), Grid(op.step.num_heads + 2 * op.step.kv.num_kv_heads));
  return WithType(op.number, [&](auto kv) {
    RopeKernel<decltype(kv)><<<grid, kHeadThreads, 0, Of(stream)>>>(op.step);
    return CudaStatus(cudaGetLastError(), "rope");
  });
}

absl::Status CudaKernels::Attend(Stream stream, const AttendOp& op) {
  const dim3 grid(Grid(op.num_tiles), Grid(op.step.kv.num_kv_heads));
  const absl::Status attended = WithType(op.number, [&](auto kv) {
    const auto by_products = op.memory_bytes <= kSmallMemory ? AttendByProductsKernel<3> : AttendByProductsKernel<2>;
    const auto kernel = op.products ? by_products : AttendKernel<decltype(kv)>;
    const auto bytes = static_cast<size_t>(op.memory_bytes);
    // More than 48 KiB has to be allowed, once; doing it again costs nothing to speak of. All that there is: graphs that
    // were made with more than this launch has are launched again.
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(block_memory_bytes_));
        error != cudaSuccess) {
      return CudaStatus(error, "memory of a block of attention");
    }
    kernel<<<grid, kTileThreads, bytes, Of(stream)>>>(op);
    return CudaStatus(cudaGetLastError(), "attention");
  });
  if (!attended.ok() || op.num_divided == 0) return attended;
  MergeKernel<<<dim3(Grid(op.num_divided), Grid(op.step.kv.num_kv_heads)), kTileThreads, 0, Of(stream)>>>(op);
  return CudaStatus(cudaGetLastError(), "merging attention");
}

}  // namespace swiftcache::engine::backend::cuda
