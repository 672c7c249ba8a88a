// SPDX-License-Identifier: Apache-2.0
// The arguments of a call in a template, and their assignment to the callee's parameters.
//
//   ASSIGN_OR_RETURN(auto args, Bind("join", arguments, {"d", "attribute"}));
//   if (args[0]) ...
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// One entry per parameter, in their order; nothing where the caller gave none.
using Bound = std::vector<std::optional<Value>>;

/// Errors: INVALID_ARGUMENT names the callee and the argument that is one too many, unknown or given twice.
absl::StatusOr<Bound> Bind(std::string_view callee, const Arguments& arguments,
                           std::initializer_list<std::string_view> parameters);

/// The argument as a string, integer or flag. Errors: INVALID_ARGUMENT names callee, the type found and wanted.
absl::StatusOr<const Text*> TextArgument(std::string_view callee, const Value& value);
absl::StatusOr<int64_t> IntegerArgument(std::string_view callee, const Value& value);
bool FlagArgument(const std::optional<Value>& value, bool standard);

}  // namespace swiftcache::gateway::text::jinja
