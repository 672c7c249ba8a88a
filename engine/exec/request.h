// SPDX-License-Identifier: Apache-2.0
// What is asked of an engine, and what it answers: token ids, no text.
//
//   Request request{.request_id = "r1", .prompt = {1, 2, 3}, .max_tokens = 10};
//   engine->Submit(std::move(request), std::make_unique<MySink>());   // -> MySink::OnTokens, ..., MySink::OnDone
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/strong_id.h"
#include "engine/sample/sampling_params.h"

namespace swiftcache::engine::exec {

/// Tells a request from later ones of the same id.
using RequestNumber = StrongId<struct RequestNumberTag, int64_t>;

struct Request {
  std::string request_id;  // unique among live requests
  RequestNumber number;    // unique among those of its id, if it may be cancelled
  std::string traceparent;
  std::vector<int32_t> prompt;
  sample::SamplingParams sampling;
  std::optional<int64_t> max_tokens;  // none: what max_model_len leaves
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t n = 1;
  std::string cache_salt;
  int32_t priority = 0;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

enum class FinishReason { kStop, kLength, kCancelled };

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_local_tokens = 0, cached_donor_tokens = 0;  // prompt tokens whose KV came from the prefix cache
  absl::Duration time_to_first_token = {}, queue_time = {};
};

/// New tokens of one continuation; the last one of an index has finish, the first and the last have usage.
struct TokenEvent {
  int32_t index = 0;
  std::vector<int32_t> token_ids = {};
  std::vector<TokenLogprob> logprobs = {};
  std::optional<FinishReason> finish = {};
  std::optional<Usage> usage = {};
};

/// Where a request's events go. Called and destroyed by a thread that serves all sinks, and not by the loop thread: who
/// blocks holds up the tokens of others, but no step.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void OnTokens(TokenEvent event) = 0;
  /// After the last OnTokens, exactly once: OK, CANCELLED, or what went wrong. The request's blocks are free by then,
  /// and its id may be used again.
  virtual void OnDone(absl::Status status) = 0;
  /// All sinks have heard what the step had to tell; follows the OnTokens and OnDone of each step, perhaps more than
  /// once. Who sends the results of a step in one message sends it now.
  virtual void OnStepEnd() {}
};

}  // namespace swiftcache::engine::exec
