// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/cuda_mapping.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::cuda_ipc {

using backend::cuda::Access;
using backend::cuda::Allocation;
using backend::cuda::Driver;

absl::StatusOr<std::unique_ptr<CudaMapping>> CudaMapping::Reserve(Driver& driver, int64_t bytes) {
  ASSIGN_OR_RETURN(const uint64_t base, driver.ReserveAddresses(bytes));
  return std::unique_ptr<CudaMapping>(new CudaMapping(driver, base, bytes));
}

// The handle is not kept: memory lives while it is mapped.
absl::Status CudaMapping::Add(Allocation memory, int64_t bytes, Access access) {
  absl::Status mapped = absl::InvalidArgumentError(absl::StrCat(bytes, " bytes are more than was reserved"));
  if (bytes <= bytes_ - mapped_bytes_) mapped = driver_.Map(base_ + mapped_bytes_, bytes, memory, access);
  if (mapped.ok()) {
    pieces_.push_back(bytes);
    mapped_bytes_ += bytes;
  }
  const absl::Status released = driver_.Release(memory);
  return mapped.ok() ? released : mapped;
}

CudaMapping::~CudaMapping() {
  uint64_t at = base_;
  for (const int64_t bytes : pieces_) {
    const absl::Status unmapped = driver_.Unmap(at, bytes);
    LOG_IF(WARNING, !unmapped.ok()) << "while a peer's memory was unmapped: " << unmapped.message();
    at += bytes;
  }
  const absl::Status freed = driver_.FreeAddresses(base_, bytes_);
  LOG_IF(WARNING, !freed.ok()) << "while a peer's memory was unmapped: " << freed.message();
}

}  // namespace swiftcache::engine::transport::cuda_ipc
