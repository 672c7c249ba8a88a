// SPDX-License-Identifier: Apache-2.0
// The kernels whose bits are a CPU's: weights as they are decoded, tokens as they are chosen. CMake compiles this file
// without fused multiply-adds.
#include <cuda_runtime.h>

#include "common/base/units.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/backend/cuda/native/launch.cuh"
#include "engine/backend/cuda/native/thread_block.cuh"
#include "engine/backend/weight_blocks.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr unsigned kChoiceThreads = 1024, kDecodeThreads = 128;

// 47,640 bytes of the 49,152 that a block of threads has without asking for more: ChoiceMemory, and 256 of each reduction
// that ChooseToken calls.
__global__ void __launch_bounds__(kChoiceThreads) ChooseKernel(ChooseOp op) {
  __shared__ ChoiceMemory memory;
  ThreadBlock block;
  const TokenChoice choice = op.choices[blockIdx.x];
  ChosenToken* const result = op.results + blockIdx.x;
  ChooseToken(block, memory, op.logits + choice.logits_row * op.vocab, op.vocab, choice, result,
              op.top_ids + choice.first_top, op.top_logits + choice.first_top);
  block.Once([&] { op.chosen[blockIdx.x] = memory.id; });
}

template <WeightFormat kFormat, class Out>
__global__ void DecodeKernel(const uint8_t* blocks, int64_t num_blocks, Out* out) {
  constexpr WeightBlock shape = BlockOf(kFormat);
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_blocks) return;
  Out* const mine = out + i * shape.elements;
  DecodeWeightBlock(kFormat, blocks + i * shape.bytes,
                    [mine](int element, float value) { Store(mine + element, value); });
}

template <WeightFormat kFormat>
absl::Status LaunchDecode(Stream stream, const DecodeOp& op) {
  return WithType(op.number, [&](auto number) {
    using Out = decltype(number);
    return Launch("decoding weights", stream, DecodeKernel<kFormat, Out>,
                  {.blocks = GridOf(CeilDiv(op.num_blocks, kDecodeThreads)), .threads = kDecodeThreads}, op.blocks,
                  op.num_blocks, static_cast<Out*>(op.out));
  });
}

}  // namespace

absl::Status CudaKernels::Decode(Stream stream, const DecodeOp& op) {
  switch (op.format) {
    case WeightFormat::kF32:
      return LaunchDecode<WeightFormat::kF32>(stream, op);
    case WeightFormat::kF16:
      return LaunchDecode<WeightFormat::kF16>(stream, op);
    case WeightFormat::kBf16:
      return LaunchDecode<WeightFormat::kBf16>(stream, op);
    case WeightFormat::kQ8_0:
      return LaunchDecode<WeightFormat::kQ8_0>(stream, op);
    case WeightFormat::kQ4_0:
      return LaunchDecode<WeightFormat::kQ4_0>(stream, op);
    case WeightFormat::kQ4_1:
      return LaunchDecode<WeightFormat::kQ4_1>(stream, op);
    case WeightFormat::kQ5_0:
      return LaunchDecode<WeightFormat::kQ5_0>(stream, op);
    case WeightFormat::kQ5_1:
      return LaunchDecode<WeightFormat::kQ5_1>(stream, op);
    case WeightFormat::kQ4_K:
      return LaunchDecode<WeightFormat::kQ4_K>(stream, op);
    case WeightFormat::kQ5_K:
      return LaunchDecode<WeightFormat::kQ5_K>(stream, op);
    case WeightFormat::kQ6_K:
      return LaunchDecode<WeightFormat::kQ6_K>(stream, op);
  }
  return absl::InvalidArgumentError("a weight format that nobody knows");
}

absl::Status CudaKernels::Choose(Stream stream, const ChooseOp& op) {
  return Launch("sampling", stream, ChooseKernel, {.blocks = GridOf(op.rows), .threads = kChoiceThreads}, op);
}

}  // namespace swiftcache::engine::backend::cuda
