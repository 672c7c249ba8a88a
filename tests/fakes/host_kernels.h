// SPDX-License-Identifier: Apache-2.0
// The kernels of the CUDA backend on the host: the same bodies, one thread a block, in the order of a fake driver's late
// streams. Products are plain loops.
//
//   FakeCudaDriver driver;
//   HostKernels kernels(driver);
//   auto backend = CudaBackend::Create(options, driver, kernels, stream);
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/cuda/kernels.h"
#include "tests/fakes/fake_cuda_driver.h"

namespace swiftcache::engine::backend::cuda {

/// Thread-safety, errors: as Kernels. Ownership: borrows the driver.
class HostKernels : public Kernels {
 public:
  explicit HostKernels(FakeCudaDriver& driver) : driver_(driver) {}

  absl::Status Decode(Stream stream, const DecodeOp& op) override;
  absl::Status Unpack(Stream stream, const UnpackOp& op) override;
  absl::Status Prepare(Stream stream, const PrepareOp& op) override;
  absl::Status Multiply(Stream stream, const ProductOp& op) override;
  absl::Status MultiplyQuantized(Stream stream, const QuantizedProductOp& op) override;
  absl::Status Keep(Stream stream, const KeepOp& op) override;
  absl::Status Rotations(Stream stream, const RotationsOp& op) override;
  absl::Status RopeAndStore(Stream stream, const RotateOp& op) override;
  absl::Status Attend(Stream stream, const AttendOp& op) override;
  absl::Status Choose(Stream stream, const ChooseOp& op) override;

 private:
  absl::Status Launch(Stream stream, std::function<void()> kernel) { return driver_.Launch(stream, std::move(kernel)); }
  FakeCudaDriver& driver_;
};

}  // namespace swiftcache::engine::backend::cuda
