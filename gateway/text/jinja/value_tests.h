// SPDX-License-Identifier: Apache-2.0
// The tests of templates (after `is`): defined, none, string, mapping, ...
//
//   ASSIGN_OR_RETURN(bool yes, ApplyTest(budget, "divisibleby", value, arguments));
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/arguments.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

bool IsTestName(std::string_view name);

/// Errors: UNIMPLEMENTED (no such test: only where its name was computed), INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
absl::StatusOr<bool> ApplyTest(Budget& budget, std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace swiftcache::gateway::text::jinja
