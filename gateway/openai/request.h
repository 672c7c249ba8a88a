// SPDX-License-Identifier: Apache-2.0
// A parsed request of OpenAI's API: what to generate, and the form of the response.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gateway/relay/relay.h"

namespace swiftcache::gateway::openai {

enum class Endpoint { kCompletions, kChat };

/// The form of the response. Thread-safety: a value.
struct ResponseOptions {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;
  int32_t n = 1;  // continuations of each prompt
  bool stream = false;
  bool usage_at_end = false;                   // stream_options.include_usage
  bool usage_on_chunks = false;                // stream_options.continuous_usage_stats
  bool echo = false;                           // completions: the prompt's text comes first
  int64_t max_echo_bytes = int64_t{64} << 20;  // of all answers
  bool logprobs = false;
};

/// One relay request for each prompt; all share the sampling.
struct ParsedRequest {
  std::vector<relay::GenerateRequest> prompts;
  ResponseOptions answer;
};

}  // namespace swiftcache::gateway::openai
