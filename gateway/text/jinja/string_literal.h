// SPDX-License-Identifier: Apache-2.0
// What stands between the quotes of a string in a template, decoded as Python decodes it.
//
//   DecodeStringLiteral("a\\n")  // "a", newline
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace swiftcache::gateway::text::jinja {

/// Nothing for a cut or impossible escape, a lone surrogate, or \N{...} (names of characters are not known here).
std::optional<std::string> DecodeStringLiteral(std::string_view source);

}  // namespace swiftcache::gateway::text::jinja
