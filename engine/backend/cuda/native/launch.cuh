// SPDX-License-Identifier: Apache-2.0
// Launching kernels. Tests put another file of this name first, in which a host runs them.
//
//   return Launch("rotations", stream, RotationsKernel, {.blocks = GridOf(op.rows), .threads = 32}, op);
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/native/cuda_status.h"
#include "engine/backend/cuda/native/launch_shape.cuh"

namespace swiftcache::engine::backend::cuda {

/// Errors: of the launch, and of any before it.
template <class... Params>
absl::Status Launch(absl::string_view what, Stream stream, void (*kernel)(Params...), const LaunchShape& shape,
                    const std::type_identity_t<Params>&... args) {
  kernel<<<shape.blocks, shape.threads, static_cast<size_t>(shape.bytes), reinterpret_cast<cudaStream_t>(stream)>>>(
      args...);
  return CudaStatus(cudaGetLastError(), what);
}

/// On 128 bytes.
__device__ inline std::byte* MemoryOfBlock() {
  extern __shared__ __align__(128) std::byte memory[];
  return memory;
}

}  // namespace swiftcache::engine::backend::cuda
