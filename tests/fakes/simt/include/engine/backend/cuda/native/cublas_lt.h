// SPDX-License-Identifier: Apache-2.0
// engine/backend/cuda/native/cublas_lt.h, emulated: products are the host's plain loops.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/fakes/host_kernels.h"

namespace swiftcache::engine::backend::cuda {

/// REQUIRES: the driver is a fake one; of several, what is launched goes to the last.
class CublasLt {
 public:
  static absl::StatusOr<std::unique_ptr<CublasLt>> Load(Driver& driver) {
    driver_ = dynamic_cast<FakeCudaDriver*>(&driver);
    return std::make_unique<CublasLt>();
  }
  static FakeCudaDriver& driver() { return *driver_; }
  absl::Status Multiply(Stream stream, const ProductOp& op) { return products_.Multiply(stream, op); }

 private:
  static inline FakeCudaDriver* driver_ = nullptr;
  HostKernels products_{*driver_};
};

}  // namespace swiftcache::engine::backend::cuda
