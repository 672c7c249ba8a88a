// SPDX-License-Identifier: Apache-2.0
// Memory that other processes may be shown and never write: a memfd whose pages are all there, whose size is fixed, and
// which its creator alone can write, whatever descriptor of it another process opens.
//
//   ASSIGN_OR_RETURN(Mapping words, Mapping::Reserve(bytes));
//   ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemory("swiftcache-generations", words.base(), bytes));
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace swiftcache::engine::memory {

/// A file descriptor, closed at the end. Thread-safety: a value. Ownership: move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A range of addresses, unmapped at the end. Thread-safety: a value. Ownership: move-only. Units: bytes.
class Mapping {
 public:
  Mapping() = default;
  /// Takes over a range that mmap returned.
  Mapping(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}
  /// Addresses without memory; files are mapped over them. They begin `past_border` bytes past the border of a huge
  /// page: what lies so in its file can be mapped by huge pages. RESOURCE_EXHAUSTED.
  static absl::StatusOr<Mapping> Reserve(int64_t bytes, int64_t past_border = 0);
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

/// Makes `bytes` (a multiple of the page) of zeroed memory, maps it writable over [at, at + bytes) of a reserved range
/// and seals it: no shrinking, growing, punching of holes, nor any further way to write it, also through a descriptor
/// reopened from /proc. Returns a read-only descriptor, the only one that is left.
/// Errors: RESOURCE_EXHAUSTED: no memory, descriptors or file size; FAILED_PRECONDITION: a kernel before Linux 5.1.
absl::StatusOr<UniqueFd> CreateSealedMemory(const char* name, std::byte* at, int64_t bytes);

/// Maps zeroed memory of this process alone over [at, at + bytes), whatever is mapped there. RESOURCE_EXHAUSTED.
absl::Status MapPrivateMemory(std::byte* at, int64_t bytes);

/// Faults every page of a mapping in. RESOURCE_EXHAUSTED: the kernel refused.
absl::Status Populate(std::byte* base, int64_t bytes);

}  // namespace swiftcache::engine::memory
