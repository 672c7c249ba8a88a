// SPDX-License-Identifier: Apache-2.0
// A matrix in the memory of a block of threads.
//
//   const BlockMatrix<float> c = {memory, /*stride=*/40};
//   c.data[row * c.stride + col] = 0;
#pragma once

#include <cstdint>

#include "engine/backend/bf16.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

/// Row after row. Thread-safety: a value. Ownership: borrows the memory. Errors: none. Units: elements.
template <class T>
struct BlockMatrix {
  T* data = nullptr;   // on 16 bytes
  int64_t stride = 0;  // from row to row; of bf16 a multiple of 8, so that each row is on 16 bytes
};

/// What is copied at once; on as many bytes.
struct alignas(16) SixteenBytes {
  uint64_t words[2] = {0, 0};
};

/// Numbers that stand side by side; on 16 bytes.
template <int kCount>
struct alignas(16) Bf16Numbers {
  static constexpr int kNumbers = kCount;
  uint32_t pairs[kNumbers / 2] = {};  // the first of two in the lower half

  GPU_CODE float At(int i) const { return FromBf16(static_cast<Bf16>(i % 2 == 0 ? pairs[i / 2] : pairs[i / 2] >> 16)); }
};
using Bf16Run = Bf16Numbers<32>;   // as many as a block of quantised weights has
using Bf16Eight = Bf16Numbers<8>;  // what is read at once

}  // namespace swiftcache::engine::backend::cuda
