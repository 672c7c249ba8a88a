// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/errors.h"

#include <utf8proc.h>

#include "absl/strings/escaping.h"

namespace swiftcache::engine::loader {

std::string Escaped(std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  const std::string escaped = absl::CHexEscape(absl::string_view(text.data(), cut ? max_bytes : text.size()));
  return cut ? escaped + "..." : escaped;
}

std::string Quoted(std::string_view text) { return absl::StrCat("\"", Escaped(text, 80), "\""); }

bool IsValidUtf8(std::string_view text) {
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(p, left, &code_point);
    if (n <= 0) return false;
    p += n;
    left -= n;
  }
  return true;
}

}  // namespace swiftcache::engine::loader
