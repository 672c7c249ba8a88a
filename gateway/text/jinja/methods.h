// SPDX-License-Identifier: Apache-2.0
// The methods of Python's str, list and dict that templates may call, and those that jinja2's immutable sandbox
// forbids.
//
//   if (LookUpMethod(value, "split") == MethodAccess::kAllowed) ...
//   ASSIGN_OR_RETURN(Value parts, CallMethod(budget, {value, "split"}, arguments));
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/arguments.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

enum class MethodAccess { kAbsent, kAllowed, kUnsafe };

/// kUnsafe are the ones that would change the value (list.append, dict.pop, ...).
MethodAccess LookUpMethod(const Value& self, std::string_view name);
/// Whether some type has it, allowed or not: what a template may name in a call.
bool IsMethodName(std::string_view name);

/// REQUIRES: LookUpMethod said kAllowed. Errors: INVALID_ARGUMENT (arguments), RESOURCE_EXHAUSTED.
absl::StatusOr<Value> CallMethod(Budget& budget, const Method& method, const Arguments& arguments);

}  // namespace swiftcache::gateway::text::jinja
