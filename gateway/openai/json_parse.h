// SPDX-License-Identifier: Apache-2.0
// Parses untrusted JSON: bounded depth and number of values, no duplicate keys, valid UTF-8, no exceptions.
//
//   ASSIGN_OR_RETURN(nlohmann::json body, ParseJson(request.body));
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace swiftcache::gateway::openai {

struct JsonLimits {
  int64_t max_depth = 32;
  int64_t max_values = int64_t{1} << 21;  // a value costs up to a few dozen bytes
};

/// Errors: INVALID_ARGUMENT (syntax, with the byte; a limit; a key that stands twice in one object).
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const JsonLimits& limits = {});

}  // namespace swiftcache::gateway::openai
