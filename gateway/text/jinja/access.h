// SPDX-License-Identifier: Apache-2.0
// Access to the parts of a template's values: `a.b`, `a[b]`, `a[1:2]`, iteration and unpacking.
//
//   ASSIGN_OR_RETURN(Value role, GetAttribute(budget, message, "role"));
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

/// The Python attribute, or else the item, of that name; an undefined value if there is neither. INVALID_ARGUMENT:
/// `value` itself is undefined.
absl::StatusOr<Value> GetAttribute(Budget& budget, const Value& value, std::string_view name);
/// Item first, then attribute.
absl::StatusOr<Value> GetItem(Budget& budget, const Value& value, const Value& key);
/// value[start:stop:step]; a part that is none or undefined in the source is null here.
absl::StatusOr<Value> GetSlice(Budget& budget, const Value& value, const Value& start, const Value& stop,
                               const Value& step);

/// What `for` and filters walk over: the items of a list, keys of a dict, characters of a string; nothing of an
/// undefined. Errors: INVALID_ARGUMENT where the value cannot be iterated.
absl::StatusOr<std::shared_ptr<const List>> Iterate(Budget& budget, const Value& value);
/// len(value); INVALID_ARGUMENT where there is none.
absl::StatusOr<int64_t> Length(const Value& value);

}  // namespace swiftcache::gateway::text::jinja
