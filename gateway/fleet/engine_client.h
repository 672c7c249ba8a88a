// SPDX-License-Identifier: Apache-2.0
// The interface to one engine. gateway/rpc implements it over gRPC, tests in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/text/stop_strings.h"
#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::fleet {

/// Meaning and defaults as in proto Sampling.
struct Sampling {
  std::optional<int32_t> max_tokens;
  std::optional<float> temperature, top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  text::StopStrings stop;  // for the gateway; engines know no text
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> logprobs;
  std::optional<int32_t> n;
};

struct EngineRequest {
  std::string request_id;  // unique per attempt
  std::string traceparent;
  std::vector<int32_t> token_ids;
  Sampling sampling;
  std::string cache_salt;
  int32_t priority = 0;
  absl::Time deadline = absl::InfiniteFuture();
};

enum class FinishReason { kStop, kLength, kCancelled };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_local_tokens = 0, cached_donor_tokens = 0, cached_host_tokens = 0;
  absl::Duration time_to_first_token, queue_time;
};

/// New tokens of one continuation; the last one of an index has finish, the first and the last have usage.
struct EngineEvent {
  int32_t index = 0;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  std::optional<FinishReason> finish;
  std::optional<Usage> usage;
};

/// Receives one request's events. Called from any thread, one call at a time; must not block.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnEvent(EngineEvent event) = 0;
  /// Last call, exactly once. UNAVAILABLE: the engine is gone, draining or starting.
  virtual void OnDone(absl::Status status) = 0;
};

/// A request under way. Cancel may be called at any time, also after OnDone; OnDone follows it at once, even if the
/// engine is frozen or gone. Destroying the handle does not cancel.
class EngineCall {
 public:
  virtual ~EngineCall() = default;
  virtual void Cancel() = 0;
  /// Asks for no more of this continuation, while the others go on. Likewise at any time; ignored where it has ended.
  virtual void CancelIndex(int32_t index) = 0;
};

struct ModelCard {
  text::TokenizerSpec tokenizer;
  std::string chat_template;
  int64_t vocab_size = 0;
};

/// Thread-safety: safe. Ownership: calls and observers are shared with the transport until OnDone.
/// Errors: through OnDone and the StatusOr; never thrown.
class EngineClient {
 public:
  virtual ~EngineClient() = default;
  virtual std::unique_ptr<EngineCall> Generate(const EngineRequest& request,
                                               std::shared_ptr<EngineObserver> observer) = 0;
  /// Blocks up to `timeout`. UNAVAILABLE (nobody answers with a card), DATA_LOSS (hash does not match),
  /// INVALID_ARGUMENT, UNIMPLEMENTED (of the card, which no other engine's is better than).
  virtual absl::StatusOr<ModelCard> FetchModelCard(absl::Duration timeout) = 0;
  /// OK where the same process answers. Blocks up to `timeout`. NOT_FOUND (another process or model answers),
  /// UNAVAILABLE, DEADLINE_EXCEEDED.
  virtual absl::Status Ping(absl::Duration timeout) = 0;
};

}  // namespace swiftcache::gateway::fleet
