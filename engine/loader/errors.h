// SPDX-License-Identifier: Apache-2.0
// How this room reports bad files: the file first, then what was found and what was wanted, with foreign text escaped.
//
//   return Malformed(file, "key ", Quoted(key), ": found ", n, ", want 1 to 4");
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace swiftcache::engine::loader {

/// `text` escaped to ASCII and cut after `max_bytes`: fit for an error message whatever it holds.
std::string Escaped(std::string_view text, size_t max_bytes);
/// The same, at most 80 bytes, in double quotes.
std::string Quoted(std::string_view text);

/// Strict: no surrogates, no overlong forms.
bool IsValidUtf8(std::string_view text);

/// A file that breaks its own format.
template <typename... Parts>
absl::Status Malformed(const std::string& file, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", parts...));
}

/// A file that is in order but wants what this version does not have.
template <typename... Parts>
absl::Status Unsupported(const std::string& file, const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat(file, ": ", parts...));
}

}  // namespace swiftcache::engine::loader
