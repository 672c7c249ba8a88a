// SPDX-License-Identifier: Apache-2.0
// Kernels on a GPU: our bodies, and cuBLASLt for products.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, CudaKernels::Create(driver));
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/native/cublas_lt.h"
#include "engine/backend/cuda/native/cuda_status.h"

namespace swiftcache::engine::backend::cuda {

/// As Kernels. Create: FAILED_PRECONDITION where cuBLASLt is not to be found, or has no kernels for this GPU.
class CudaKernels final : public Kernels {
 public:
  static absl::StatusOr<std::unique_ptr<Kernels>> Create(Driver& driver) {
    absl::StatusOr<std::unique_ptr<CublasLt>> products = CublasLt::Load(driver);
    if (!products.ok()) return products.status();
    return std::unique_ptr<Kernels>(new CudaKernels(*std::move(products), driver.info().block_memory_bytes));
  }
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
  CudaKernels(std::unique_ptr<CublasLt> products, int64_t block_memory_bytes)
      : products_(std::move(products)), block_memory_bytes_(block_memory_bytes) {}
  const std::unique_ptr<CublasLt> products_;
  const int64_t block_memory_bytes_;
};

}  // namespace swiftcache::engine::backend::cuda
