// SPDX-License-Identifier: Apache-2.0
// The functions of templates: range, namespace, dict, raise_exception, strftime_now.
//
//   const Function* function = FindFunction("range");
//   ASSIGN_OR_RETURN(Value list, function->call(context, arguments));
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/text/jinja/arguments.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

/// What functions use besides their arguments.
struct FunctionContext {
  Budget& budget;
  absl::Time wall_time;
  std::vector<std::unique_ptr<Namespace>>& namespaces;  // owned by the rendering
  bool& raised;                                         // set by raise_exception
};

/// Errors of a call: INVALID_ARGUMENT (arguments; what raise_exception says), RESOURCE_EXHAUSTED (a range above
/// 100,000, as in jinja2's sandbox).
struct Function {
  std::string_view name;
  absl::StatusOr<Value> (*call)(FunctionContext& context, const Arguments& arguments);
};

/// Null where there is none of that name.
const Function* FindFunction(std::string_view name);

}  // namespace swiftcache::gateway::text::jinja
