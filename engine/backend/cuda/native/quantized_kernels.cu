// SPDX-License-Identifier: Apache-2.0
// The kernels that read packed weights. CMake compiles this file without fused multiply-adds: weights have the bits that a
// CPU gives them.
#include <cuda_runtime.h>

#include "common/base/units.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/backend/cuda/native/launch.cuh"
#include "engine/backend/cuda/native/thread_block.cuh"
#include "engine/backend/cuda/quantized_body.h"
#include "engine/backend/cuda/row_bodies.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr unsigned kRowThreads = 128, kProductThreads = 256;
constexpr int64_t kOutputs = 16;  // of a block

__device__ int64_t RowOf(const UnpackOp& op) {
  const int64_t row = blockIdx.x;
  if (op.ids == nullptr) return row;
  const int32_t id = op.ids[row];
  return id >= 0 ? id : op.chosen[-1 - id];
}

template <class In, class Out>
__global__ void UnpackKernel(UnpackOp op) {
  ThreadBlock block;
  ConvertRow(block, static_cast<const In*>(op.from.numbers) + RowOf(op) * op.cols, op.cols,
             static_cast<Out*>(op.out) + blockIdx.x * op.cols);
}

template <WeightFormat kFormat, class Out>
__global__ void UnpackQuantizedKernel(UnpackOp op) {
  ThreadBlock block;
  UnpackRow<kFormat>(block, op.from, RowOf(op), op.cols, static_cast<Out*>(op.out) + blockIdx.x * op.cols);
}

template <WeightFormat kFormat, int kUnits>
__global__ void __launch_bounds__(kProductThreads, 2) QuantizedProductKernel(QuantizedProductOp op) {
  ThreadBlock block;
  MultiplyOutputs<kFormat, kUnits>(block, op, blockIdx.x * kOutputs);
}

}  // namespace

absl::Status CudaKernels::Unpack(Stream stream, const UnpackOp& op) {
  return WithType(op.number, [&](auto out) {
    using Out = decltype(out);
    const auto launch = [&](void (*kernel)(UnpackOp)) {
      return Launch("unpacking weights", stream, kernel, {.blocks = GridOf(op.rows), .threads = kRowThreads}, op);
    };
    if (IsQuantized(op.from.format)) {
      return WithQuantized(op.from.format, [&](auto format) { return launch(UnpackQuantizedKernel<format(), Out>); });
    }
    return WithType(NumberOf(op.from.format), [&](auto in) { return launch(UnpackKernel<decltype(in), Out>); });
  });
}

absl::Status CudaKernels::MultiplyQuantized(Stream stream, const QuantizedProductOp& op) {
  return WithQuantized(op.weight.format, [&](auto format) {
    const auto kernel = op.rows <= 8    ? QuantizedProductKernel<format(), 1>
                        : op.rows <= 16 ? QuantizedProductKernel<format(), 2>
                        : op.rows <= 32 ? QuantizedProductKernel<format(), 4>
                                        : QuantizedProductKernel<format(), 8>;
    return Launch("a product of quantised weights", stream, kernel,
                  {.blocks = GridOf(CeilDiv(op.outputs, kOutputs)), .threads = kProductThreads}, op);
  });
}

}  // namespace swiftcache::engine::backend::cuda
