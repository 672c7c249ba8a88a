// SPDX-License-Identifier: Apache-2.0
// The attributes of the `loop` variable of a for loop: loop.index, loop.last, loop.previtem, ...
//
//   ASSIGN_OR_RETURN(std::optional<Value> index, LoopAttribute(loop, "index"));
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

/// Nothing for a name that loops do not have. Errors: UNIMPLEMENTED for loop.changed.
absl::StatusOr<std::optional<Value>> LoopAttribute(const std::shared_ptr<const Loop>& loop, std::string_view name);

}  // namespace swiftcache::gateway::text::jinja
