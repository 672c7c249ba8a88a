// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str and repr.
//
//   RETURN_IF_ERROR(AppendStr(value, out));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/text/jinja/text.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

/// float.__repr__: the shortest digits that read back the same.
std::string FloatRepr(double d);

/// Errors: the builder's; UNIMPLEMENTED for what Python prints as an address (functions, generators).
absl::Status AppendStr(const Value& value, TextBuilder& out);
absl::Status AppendRepr(const Value& value, TextBuilder& out);

/// str(value); a string is itself, not copied.
absl::StatusOr<TextPtr> Str(Budget& budget, const Value& value);

}  // namespace swiftcache::gateway::text::jinja
