// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only.
//
//   ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open("model.gguf"));
//   Parse(file.bytes());
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace swiftcache::engine::loader {

/// False also if that cannot be determined.
bool FileExists(const std::string& path);

/// Thread-safety: immutable. Ownership: move-only, unmaps in the destructor. The file must not be truncated while
/// mapped.
/// Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file), INTERNAL (mmap; says why).
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;  // empty: nothing is mapped
};

}  // namespace swiftcache::engine::loader
