// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/errors.h"

#include "absl/strings/escaping.h"

namespace swiftcache::engine::loader {

std::string Escaped(std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  const std::string escaped = absl::CHexEscape(absl::string_view(text.data(), cut ? max_bytes : text.size()));
  return cut ? escaped + "..." : escaped;
}

std::string Quoted(std::string_view text) { return absl::StrCat("\"", Escaped(text, 80), "\""); }

}  // namespace swiftcache::engine::loader
