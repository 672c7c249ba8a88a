// SPDX-License-Identifier: Apache-2.0
// Parses template source into a syntax tree.
//
//   ASSIGN_OR_RETURN(Block body, Parse("{% for m in messages %}{{ m.content }}{% endfor %}"));
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/syntax.h"

namespace swiftcache::gateway::text::jinja {

/// Errors: INVALID_ARGUMENT (syntax; line and column), UNIMPLEMENTED (a tag, filter, test, method or function that is
/// not supported; names it and the line).
absl::StatusOr<Block> Parse(std::string_view source);

}  // namespace swiftcache::gateway::text::jinja
