// SPDX-License-Identifier: Apache-2.0
// Errors as OpenAI's clients read them: an HTTP status and {"error":{"message","type","param","code"}}.
//
//   return FieldError("top_p", "top_p is 7, wants a number in (0, 1]");
//   responder.Send(HttpStatusOf(status), kJson, ErrorBody(status), ErrorHeaders(status));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/http/http_server.h"

namespace swiftcache::gateway::openai {

inline constexpr char kJson[] = "application/json";

/// INVALID_ARGUMENT that remembers which field it is about.
absl::Status FieldError(std::string_view param, std::string_view message);

/// The same status about `param`, unless it names one already.
absl::Status AboutField(absl::Status status, std::string_view param);

/// 400, 401, 403, 404, 429, 499, 500, 503 or 504. REQUIRES: !status.ok().
int HttpStatusOf(const absl::Status& status);

/// One line of JSON, whatever bytes the message holds. REQUIRES: !status.ok().
std::string ErrorBody(const absl::Status& status);

/// Retry-After (in whole seconds) where trying again helps.
HttpHeaders ErrorHeaders(const absl::Status& status);

}  // namespace swiftcache::gateway::openai
