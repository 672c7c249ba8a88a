// SPDX-License-Identifier: Apache-2.0
// Reads little-endian fields one after the other; reading past the end is an error.
//
//   ByteReader reader(file.bytes(), path);
//   ASSIGN_OR_RETURN(uint32_t version, reader.Read<uint32_t>("version"));
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"

namespace swiftcache::engine::loader {

static_assert(std::endian::native == std::endian::little, "files are little-endian and read in place");

/// Thread-safety: none. Ownership: borrows the bytes; views it returns point into them.
/// Errors: INVALID_ARGUMENT names file, offset, what was read, the bytes wanted and those left. Units: bytes.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}

  template <typename T>
  absl::StatusOr<T> Read(const char* what) {
    ASSIGN_OR_RETURN(std::span<const std::byte> bytes, ReadBytes(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  absl::StatusOr<std::span<const std::byte>> ReadBytes(uint64_t size, const char* what);
  /// A GGUF string: its length as uint64, then its bytes.
  absl::StatusOr<std::string_view> ReadString(const char* what);

  int64_t offset() const { return offset_; }
  int64_t remaining() const { return static_cast<int64_t>(bytes_.size()) - offset_; }
  const std::string& file() const { return file_; }

 private:
  const std::span<const std::byte> bytes_;
  const std::string file_;
  int64_t offset_ = 0;
};

}  // namespace swiftcache::engine::loader
