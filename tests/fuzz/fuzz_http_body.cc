// SPDX-License-Identifier: Apache-2.0
// Bodies of POST /v1/completions and /v1/chat/completions: each is a request within the limits, or one clear error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "gateway/openai/api_error.h"
#include "gateway/openai/parse_request.h"
#include "nlohmann/json.hpp"

namespace {

using swiftcache::gateway::openai::Endpoint;
using swiftcache::gateway::openai::ParsedRequest;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckError(const absl::Status& status) {
  Require(swiftcache::gateway::openai::HttpStatusOf(status) == 400);
  const auto body = nlohmann::json::parse(swiftcache::gateway::openai::ErrorBody(status), nullptr, false);
  Require(body.is_object() && !body["error"]["message"].get<std::string>().empty());
  Require(status.message().size() < 2000);  // never the body itself
}

void CheckRequest(const ParsedRequest& parsed) {
  Require(!parsed.prompts.empty() && parsed.prompts.size() <= 256);
  for (const auto& request : parsed.prompts) {
    const auto& sampling = request.sampling;
    Require(!request.model.empty());
    Require(sampling.n.value_or(1) >= 1 && sampling.n.value_or(1) == parsed.answer.n);
    Require(sampling.max_tokens.value_or(1) >= 1);
    Require(sampling.top_p.value_or(1) > 0 && sampling.top_p.value_or(1) <= 1);
    Require(sampling.temperature.value_or(1) >= 0 && sampling.temperature.value_or(1) <= 2);
    Require(sampling.stop.list().size() <= 16 && sampling.stop_token_ids.size() <= 128);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    const auto parsed = swiftcache::gateway::openai::ParseRequest(endpoint, body);
    parsed.ok() ? CheckRequest(*parsed) : CheckError(parsed.status());
  }
  return 0;
}
