// SPDX-License-Identifier: Apache-2.0
// The errors of this room about bad files: the file first, then what was found and what was wanted. Text from the file
// is escaped.
//
//   return Malformed(file, "key ", Quoted(key), ": found ", n, ", want 1 to 4");
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace swiftcache::engine::loader {

/// `text` escaped to ASCII and cut after `max_bytes`, so that any bytes are safe in an error message.
std::string Escaped(std::string_view text, size_t max_bytes);
/// The same, at most 80 bytes, in double quotes.
std::string Quoted(std::string_view text);

/// A file that breaks its own format.
template <typename... Parts>
absl::Status Malformed(const std::string& file, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", parts...));
}

/// A valid file that needs a feature which this version does not have.
template <typename... Parts>
absl::Status Unsupported(const std::string& file, const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat(file, ": ", parts...));
}

}  // namespace swiftcache::engine::loader
