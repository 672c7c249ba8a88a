// SPDX-License-Identifier: Apache-2.0
// engine/backend/cuda/native/launch.cuh, emulated: kernels run in the order of the fake driver's streams.
#pragma once

#include <cstddef>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/native/cublas_lt.h"
#include "engine/backend/cuda/native/cuda_status.h"
#include "engine/backend/cuda/native/launch_shape.cuh"
#include "tests/fakes/simt/include/cuda_runtime.h"

namespace swiftcache::engine::backend::cuda {

template <class... Params>
absl::Status Launch(absl::string_view what, Stream stream, void (*kernel)(Params...), const LaunchShape& shape,
                    const std::type_identity_t<Params>&... args) {
  if (shape.bytes > simt::MostMemoryOf(reinterpret_cast<const void*>(kernel))) {
    return CudaStatus(cudaErrorInvalidValue, what);
  }
  return CublasLt::driver().Launch(stream, [=] {
    simt::RunGrid({.blocks = {shape.blocks.x, shape.blocks.y, shape.blocks.z},
                   .threads = shape.threads,
                   .memory_bytes = shape.bytes},
                  [&] { kernel(args...); });
  });
}

inline std::byte* MemoryOfBlock() { return simt::BlockMemory(); }

}  // namespace swiftcache::engine::backend::cuda
