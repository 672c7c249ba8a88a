// SPDX-License-Identifier: Apache-2.0
// Decodes the characters between the quotes of a string in a template, as Python does.
//
//   DecodeStringLiteral("a\\n")  // "a", newline
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace swiftcache::gateway::text::jinja {

/// Nothing for an incomplete or invalid escape, a lone surrogate, or \N{...} (character names are not supported).
std::optional<std::string> DecodeStringLiteral(std::string_view source);

}  // namespace swiftcache::gateway::text::jinja
