// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace swiftcache::gateway::text::jinja {
namespace {

absl::Status WrongType(std::string_view callee, const Value& value, const char* wanted) {
  if (value.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(value));
  return absl::InvalidArgumentError(absl::StrCat(std::string(callee), ": an argument of type '",
                                                 std::string(TypeName(value)), "' found, ", wanted, " wanted"));
}

}  // namespace

absl::StatusOr<Bound> Bind(std::string_view callee, const Arguments& arguments,
                           std::initializer_list<std::string_view> parameters) {
  Bound bound(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(callee), " takes at most ", parameters.size(),
                                                   " arguments, found ", arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    auto place = std::find(parameters.begin(), parameters.end(), name);
    if (place == parameters.end() || bound[static_cast<size_t>(place - parameters.begin())]) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(callee), ": argument '", name,
                                                     place == parameters.end() ? "' is unknown" : "' is given twice"));
    }
    bound[static_cast<size_t>(place - parameters.begin())] = value;
  }
  return bound;
}

absl::StatusOr<const Text*> TextArgument(std::string_view callee, const Value& value) {
  if (auto* text = value.AsText()) return text;
  return WrongType(callee, value, "a string");
}

absl::StatusOr<int64_t> IntegerArgument(std::string_view callee, const Value& value) {
  if (auto integer = value.AsInteger()) return *integer;
  return WrongType(callee, value, "an integer");
}

bool FlagArgument(const std::optional<Value>& value, bool standard) { return value ? IsTruthy(*value) : standard; }

}  // namespace swiftcache::gateway::text::jinja
