// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/byte_reader.h"

#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {

absl::StatusOr<std::span<const std::byte>> ByteReader::ReadBytes(uint64_t size, const char* what) {
  if (size > static_cast<uint64_t>(remaining())) {
    return Malformed(file_, "offset ", offset_, ": ", what, " wants ", size, " bytes, found ", remaining(),
                     " to the end of the file");
  }
  const auto view = bytes_.subspan(offset_, size);
  offset_ += static_cast<int64_t>(size);
  return view;
}

absl::StatusOr<std::string_view> ByteReader::ReadString(const char* what) {
  ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(what));
  ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, ReadBytes(length, what));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace swiftcache::engine::loader
