// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/device_memory.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::backend::cuda {

absl::StatusOr<DeviceBytes> DeviceBytes::Allocate(Driver& driver, int64_t bytes, Stream user) {
  const int64_t granularity = driver.info().granularity_bytes;
  DeviceBytes memory;
  memory.bytes_ = CeilDiv(std::max<int64_t>(1, bytes), granularity) * granularity;
  memory.driver_ = &driver;
  memory.user_ = user;
  ASSIGN_OR_RETURN(memory.allocation_, driver.Allocate(memory.bytes_));
  const absl::StatusOr<uint64_t> address = driver.ReserveAddresses(memory.bytes_);
  if (!address.ok()) return address.status();
  if (const absl::Status mapped = driver.Map(*address, memory.bytes_, memory.allocation_, Access::kReadWrite);
      !mapped.ok()) {
    (void)driver.FreeAddresses(*address, memory.bytes_);
    return mapped;
  }
  memory.address_ = *address;
  return memory;
}

DeviceBytes& DeviceBytes::operator=(DeviceBytes&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(allocation_, other.allocation_);
  std::swap(user_, other.user_);
  return *this;
}

// The memory goes in any case: what a lost device answers is of no use here.
void DeviceBytes::Free() {
  if (driver_ == nullptr) return;
  if (address_ != 0) {
    if (user_ != Stream{}) driver_->Finish(user_);
    (void)driver_->Unmap(address_, bytes_);
    (void)driver_->FreeAddresses(address_, bytes_);
  }
  if (allocation_ != Allocation{}) (void)driver_->Release(allocation_);
  driver_ = nullptr;
}

absl::StatusOr<PinnedBytes> PinnedBytes::Allocate(Driver& driver, int64_t bytes) {
  PinnedBytes memory;
  ASSIGN_OR_RETURN(memory.data_, driver.AllocateHost(std::max<int64_t>(1, bytes)));
  memory.driver_ = &driver;
  memory.bytes_ = bytes;
  return memory;
}

PinnedBytes& PinnedBytes::operator=(PinnedBytes&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void PinnedBytes::Free() {
  if (driver_ != nullptr) (void)driver_->FreeHost(data_);
  driver_ = nullptr;
}

}  // namespace swiftcache::engine::backend::cuda
