// SPDX-License-Identifier: Apache-2.0
// The filters of templates (after `|`): trim, tojson, join, selectattr, ...
//
//   ASSIGN_OR_RETURN(Value trimmed, ApplyFilter(budget, "trim", value, {}));
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/arguments.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

bool IsFilterName(std::string_view name);

/// Errors: UNIMPLEMENTED (no such filter: only where its name was computed), INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
absl::StatusOr<Value> ApplyFilter(Budget& budget, std::string_view name, const Value& input,
                                  const Arguments& arguments);

/// A call of one filter; the tables below are by subject.
struct FilterCall {
  Budget& budget;
  std::string_view name;
  const Value& input;
  const Arguments& arguments;
};
struct Filter {
  std::string_view name;
  absl::StatusOr<Value> (*apply)(const FilterCall& call);
};
std::span<const Filter> TextFilters();
std::span<const Filter> NumberFilters();
std::span<const Filter> ListFilters();
std::span<const Filter> OrderFilters();

/// The attribute "a.b" or item 0 of a value, as `map(attribute=...)` and its like look it up.
absl::StatusOr<Value> LookUpPath(Budget& budget, const Value& value, const Value& path);

}  // namespace swiftcache::gateway::text::jinja
