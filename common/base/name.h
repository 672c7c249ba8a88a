// SPDX-License-Identifier: Apache-2.0
// The characters that names of engines and models may have: safe in log lines, metric labels and addresses.
//
//   if (!IsName(flag)) return absl::InvalidArgumentError(...);
#pragma once

#include <cstddef>
#include <string_view>

namespace swiftcache {

inline constexpr size_t kMaxNameBytes = 128;
inline constexpr char kNamePunctuation[] = "._:/@+-[]";  // brackets: addresses of IPv6

/// Whether `text` is at most kMaxNameBytes ASCII letters, digits and kNamePunctuation; true for the empty text.
constexpr bool IsName(std::string_view text) {
  for (const char c : text) {
    const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!alphanumeric && std::string_view(kNamePunctuation).find(c) == std::string_view::npos) return false;
  }
  return text.size() <= kMaxNameBytes;
}

}  // namespace swiftcache
