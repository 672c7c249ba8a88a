// SPDX-License-Identifier: Apache-2.0
// The methods of str: strip, split, startswith, format, ...
//
//   ASSIGN_OR_RETURN(Value parts, CallStringMethod(budget, text, "split", arguments));
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/arguments.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

bool IsStringMethod(std::string_view name);

/// REQUIRES: IsStringMethod(name). Errors: INVALID_ARGUMENT (arguments), UNIMPLEMENTED (format specifications),
/// RESOURCE_EXHAUSTED.
absl::StatusOr<Value> CallStringMethod(Budget& budget, const Text& text, std::string_view name,
                                       const Arguments& arguments);

}  // namespace swiftcache::gateway::text::jinja
