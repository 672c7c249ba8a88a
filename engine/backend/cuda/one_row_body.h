// SPDX-License-Identifier: Apache-2.0
// The body of a product of one row by weights in bf16: decoding of one sequence does little else than read them.
//
//   if (IsOneRow(op)) MultiplyOneRow(block, op, output);
#pragma once

#include <cstdint>

#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

inline bool IsOneRow(const ProductOp& op) {
  return op.rows == 1 && op.number == Number::kBf16 && op.cols % Bf16Eight::kNumbers == 0;
}

/// One output. The order of its sum is the block's own.
template <class Block>
GPU_CODE void MultiplyOneRow(Block& block, const ProductOp& op, int64_t output) {
  const auto* const in = static_cast<const Bf16Eight*>(op.in);
  const auto* const weights =
      reinterpret_cast<const Bf16Eight*>(static_cast<const Bf16*>(op.weight) + output * op.cols);
  const float product = block.template Sum<float>(op.cols / Bf16Eight::kNumbers, [&](int64_t i) {
    const Bf16Eight weight = weights[i], x = in[i];
    float sum = 0;
    for (int e = 0; e < Bf16Eight::kNumbers; ++e) sum += weight.At(e) * x.At(e);
    return sum;
  });
  block.Once([&] {
    if (op.out_number == Number::kBf16) return Store(static_cast<Bf16*>(op.out) + output, product);
    float* const out = static_cast<float*>(op.out) + output;
    *out = product + (op.bias == nullptr ? 0 : op.bias[output]) + (op.add ? *out : 0);
  });
}

}  // namespace swiftcache::engine::backend::cuda
