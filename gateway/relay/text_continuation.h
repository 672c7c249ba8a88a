// SPDX-License-Identifier: Apache-2.0
// One of the n continuations of a request: turns the engine's tokens into text, and ends it at a stop string.
//
//   TextContinuation continuation(*text, sampling, prompt_tokens);
//   GenerateEvent event = continuation.Take(std::move(engine_event), time_to_first_token);
//   if (continuation.ended()) ...
#pragma once

#include <cstdint>
#include <vector>

#include "gateway/fleet/model_text.h"
#include "gateway/relay/relay.h"
#include "gateway/text/detokenizer.h"

namespace swiftcache::gateway::relay {

/// Thread-safety: none. Ownership: borrows the model's text. Errors: none.
class TextContinuation {
 public:
  TextContinuation(const fleet::ModelText& text, const fleet::Sampling& sampling, int64_t prompt_tokens);

  /// Turns the engine's event into the client's; tokens after a stop string are dropped. REQUIRES: !ended().
  /// `time_to_first_token` goes into the usage.
  GenerateEvent Take(fleet::EngineEvent event, absl::Duration time_to_first_token);
  bool ended() const { return ended_; }
  int64_t completion_tokens() const { return usage_.completion_tokens; }
  int64_t cached_tokens() const {
    return usage_.cached_local_tokens + usage_.cached_donor_tokens + usage_.cached_host_tokens;
  }

 private:
  TokenLogprob Named(int32_t id, float logprob) const;
  TokenLogprob Named(const fleet::TokenLogprob& logprob) const;

  const text::Tokenizer& tokenizer_;
  text::Detokenizer detokenizer_;
  fleet::Usage usage_;
  bool ended_ = false;
};

}  // namespace swiftcache::gateway::relay
