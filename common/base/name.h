// SPDX-License-Identifier: Apache-2.0
// What names of engines and models are made of: safe in log lines, metric labels and addresses.
//
//   if (!IsName(flag)) return absl::InvalidArgumentError(...);
#pragma once

#include <cstddef>
#include <string_view>

namespace swiftcache {

inline constexpr size_t kMaxNameBytes = 128;
inline constexpr char kNamePunctuation[] = "._:/@+-[]";  // brackets: addresses of IPv6

/// At most kMaxNameBytes ASCII letters, digits and kNamePunctuation; the empty name is one too.
constexpr bool IsName(std::string_view text) {
  for (const char c : text) {
    const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!alphanumeric && std::string_view(kNamePunctuation).find(c) == std::string_view::npos) return false;
  }
  return text.size() <= kMaxNameBytes;
}

}  // namespace swiftcache
