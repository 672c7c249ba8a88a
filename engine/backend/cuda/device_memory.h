// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU, of pinned host memory, and streams and events of it, freed with their owner.
//
//   ASSIGN_OR_RETURN(DeviceBytes weights, DeviceBytes::Allocate(driver, bytes));
//   weights.as<float>();                                    // an address of the device: not to be read here
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"

namespace swiftcache::engine::backend::cuda {

/// Memory of the device at one run of addresses. Thread-safety: none. Ownership: move-only, owns addresses and memory;
/// borrows the driver. Errors: the driver's.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  /// Uninitialised. `bytes` is rounded up to what the driver gives. It is freed when `user`, if one is named, has done
  /// what it was given; else nothing may touch it any more by then.
  static absl::StatusOr<DeviceBytes> Allocate(Driver& driver, int64_t bytes, Stream user = {});
  DeviceBytes(DeviceBytes&& other) noexcept { *this = std::move(other); }
  DeviceBytes& operator=(DeviceBytes&& other) noexcept;
  ~DeviceBytes() { Free(); }

  uint64_t address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }

 private:
  void Free();
  Driver* driver_ = nullptr;
  uint64_t address_ = 0;
  int64_t bytes_ = 0;
  Allocation allocation_ = {};
  Stream user_ = {};
};

/// Pinned memory of the host, which kernels reach at the same address. Likewise.
class PinnedBytes {
 public:
  PinnedBytes() = default;
  static absl::StatusOr<PinnedBytes> Allocate(Driver& driver, int64_t bytes);
  PinnedBytes(PinnedBytes&& other) noexcept { *this = std::move(other); }
  PinnedBytes& operator=(PinnedBytes&& other) noexcept;
  ~PinnedBytes() { Free(); }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void Free();
  Driver* driver_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace swiftcache::engine::backend::cuda
