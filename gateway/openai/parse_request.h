// SPDX-License-Identifier: Apache-2.0
// Parses the JSON of POST /v1/completions and /v1/chat/completions into requests for the relay. Pure.
//
//   ASSIGN_OR_RETURN(ParsedRequest parsed, ParseRequest(Endpoint::kChat, http.body));
//   ReadHeaders(http, request_id, parsed);
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "gateway/openai/fields.h"
#include "gateway/openai/request.h"
#include "gateway/relay/validate.h"

namespace swiftcache::gateway::openai {

/// All inclusive.
struct HttpRequestLimits {
  relay::Limits request = {};  // the relay checks them, too; here the error names the JSON field
  int64_t max_prompts = 256;
  int64_t max_answers = 1024;  // prompts x n
  // Of all answers that are to begin with their prompt:
  int64_t max_echo_ids = relay::Limits().max_detokenize_ids;
  int64_t max_echo_bytes = int64_t{64} << 20;
};

/// Unknown fields are ignored; tools and response formats other than text are refused. Errors: INVALID_ARGUMENT naming
/// field, value and limit.
absl::StatusOr<ParsedRequest> ParseRequest(Endpoint endpoint, const std::string& body,
                                           const HttpRequestLimits& limits = {});

/// Sets the request's id, and the traceparent of the headers. With several prompts each gets the id with a number; a
/// long id is cut to make room for it, so that an id accepted for one prompt is accepted for many.
void ReadHeaders(const HttpRequest& http, const std::string& request_id, ParsedRequest& parsed,
                 const HttpRequestLimits& limits = {});

/// "prompt": a string, a list of strings, token ids, or a list of lists of token ids. Errors go to `fields`.
std::vector<relay::Input> ParsePrompts(Fields& fields, const HttpRequestLimits& limits);

/// "messages" with content as a string or as a list of text parts. Errors go to `fields`.
relay::Chat ParseChat(Fields& fields, const HttpRequestLimits& limits);

}  // namespace swiftcache::gateway::openai
