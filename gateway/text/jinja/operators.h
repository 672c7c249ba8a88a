// SPDX-License-Identifier: Apache-2.0
// Python's operators on values.
//
//   ASSIGN_OR_RETURN(Value sum, Arithmetic(budget, Op::kAdd, a, b));
#pragma once

#include "absl/status/statusor.h"
#include "gateway/text/jinja/syntax.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

/// + - * / // % **. Errors: INVALID_ARGUMENT for types that do not go together, a division by zero or an integer that
/// leaves 64 bits (Python's would grow); UNIMPLEMENTED for `%` on strings; RESOURCE_EXHAUSTED.
absl::StatusOr<Value> Arithmetic(Budget& budget, Op op, const Value& left, const Value& right);
absl::StatusOr<Value> Negate(const Value& value);

/// == of Python: numbers by value, strings by their bytes, lists and dicts by their items.
absl::StatusOr<bool> Equal(Budget& budget, const Value& left, const Value& right);
/// left < right; INVALID_ARGUMENT for types without an order.
absl::StatusOr<bool> Less(Budget& budget, const Value& left, const Value& right);
/// == != < <= > >= in, not in.
absl::StatusOr<bool> Compare(Budget& budget, Op op, const Value& left, const Value& right);
absl::StatusOr<bool> Contains(Budget& budget, const Value& container, const Value& item);

}  // namespace swiftcache::gateway::text::jinja
