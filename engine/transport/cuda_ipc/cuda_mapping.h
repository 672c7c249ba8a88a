// SPDX-License-Identifier: Apache-2.0
// Physical memory of a GPU, own or imported, piece after piece at one run of addresses.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<CudaMapping> mapping, CudaMapping::Reserve(driver, bytes));
//   ASSIGN_OR_RETURN(const Allocation chunk, driver.Import(fd));
//   RETURN_IF_ERROR(mapping->Add(chunk, chunk_bytes, Access::kRead));
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"

namespace swiftcache::engine::transport::cuda_ipc {

/// It belongs to what it was made for, a lease of one epoch or a channel's staging memory, and goes with it. Nobody finds
/// it by an address, by a descriptor or by the donor's name: a donor that starts anew is never read through it.
/// Thread-safety: none while it is filled, immutable then. Ownership: owns addresses and mappings; borrows the driver,
/// which outlives it. Errors: the driver's.
class CudaMapping {
 public:
  /// REQUIRES: bytes is a multiple of the driver's granularity.
  static absl::StatusOr<std::unique_ptr<CudaMapping>> Reserve(backend::cuda::Driver& driver, int64_t bytes);
  CudaMapping(const CudaMapping&) = delete;
  CudaMapping& operator=(const CudaMapping&) = delete;
  /// REQUIRES: no work that touches it is under way.
  ~CudaMapping();

  /// Maps the whole allocation behind what was added before, and takes its handle, also where it fails.
  absl::Status Add(backend::cuda::Allocation memory, int64_t bytes, backend::cuda::Access access);

  uint64_t base() const { return base_; }
  int64_t bytes() const { return bytes_; }

 private:
  CudaMapping(backend::cuda::Driver& driver, uint64_t base, int64_t bytes)
      : driver_(driver), base_(base), bytes_(bytes) {}

  backend::cuda::Driver& driver_;
  const uint64_t base_;
  const int64_t bytes_;
  int64_t mapped_bytes_ = 0;
  std::vector<int64_t> pieces_;  // their sizes
};

}  // namespace swiftcache::engine::transport::cuda_ipc
