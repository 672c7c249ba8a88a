// SPDX-License-Identifier: Apache-2.0
// Memory of the CPU backend: zeroed, aligned, in huge pages where the kernel gives them, and an error where it does
// not.
//
//   ASSIGN_OR_RETURN(HostMemory scratch, HostMemory::Allocate(bytes));
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace swiftcache::engine::backend::cpu {

inline constexpr int64_t kAlignment = 64;

/// An anonymous mapping. Thread-safety: a move-only value. Ownership: unmaps. Errors: RESOURCE_EXHAUSTED names the
/// bytes.
class HostMemory {
 public:
  static absl::StatusOr<HostMemory> Allocate(int64_t bytes);
  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
  std::byte* data_ = nullptr;  // aligned within the mapping
  int64_t bytes_ = 0;
};

/// Many weight matrices in few large mappings, so that small ones lie in huge pages too. Never gives back before its
/// end. Thread-safety: none. Ownership: owns what it hands out. Errors: RESOURCE_EXHAUSTED names the bytes.
class WeightArena {
 public:
  /// kAlignment-aligned zeroes.
  absl::StatusOr<std::byte*> Allocate(int64_t bytes);

 private:
  std::vector<HostMemory> chunks_;
  int64_t used_ = 0;  // of the last chunk
};

}  // namespace swiftcache::engine::backend::cpu
