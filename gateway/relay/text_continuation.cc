// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/text_continuation.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace swiftcache::gateway::relay {

using fleet::FinishReason;

// The ids continue the prompt, in a chat too: only then do the prompt's text and the continuation's together equal the
// text of all tokens.
TextContinuation::TextContinuation(const fleet::ModelText& text, const fleet::Sampling& sampling, int64_t prompt_tokens)
    : tokenizer_(text.tokenizer()),
      detokenizer_(text.tokenizer(), sampling.stop.Matcher(), text::TextStart::kContinuesPrompt) {
  usage_.prompt_tokens = prompt_tokens;
}

GenerateEvent TextContinuation::Take(fleet::EngineEvent event, absl::Duration time_to_first_token) {
  if (event.usage.has_value()) {
    const int64_t relayed = usage_.completion_tokens;
    usage_ = *event.usage;
    usage_.completion_tokens = relayed;
  }
  GenerateEvent out;
  out.index = event.index;
  // By its last token, whose text, like that of a stop string, is not part of the continuation.
  const bool engine_stopped = event.finish == FinishReason::kStop;
  for (size_t i = 0; i < event.token_ids.size() && !detokenizer_.stopped(); ++i) {
    const int32_t id = event.token_ids[i];
    const bool last = i + 1 == event.token_ids.size();
    out.token_ids.push_back(id);
    if (i < event.logprobs.size()) out.logprobs.push_back(Named(event.logprobs[i]));
    if (!(engine_stopped && last)) out.text += detokenizer_.Push(id);
  }
  usage_.completion_tokens += static_cast<int64_t>(out.token_ids.size());
  if (!detokenizer_.stopped() && event.finish.has_value()) out.text += detokenizer_.Flush();
  out.finish = detokenizer_.stopped() ? FinishReason::kStop : event.finish;
  if (out.finish.has_value()) {
    ended_ = true;
    usage_.time_to_first_token = time_to_first_token;
    out.usage = usage_;
  }
  return out;
}

TokenLogprob TextContinuation::Named(int32_t id, float logprob) const {
  return {.token_id = id, .logprob = logprob, .token = tokenizer_.TokenBytes(id), .top = {}};
}

TokenLogprob TextContinuation::Named(const fleet::TokenLogprob& logprob) const {
  TokenLogprob named = Named(logprob.token_id, logprob.logprob);
  for (const auto& [id, value] : logprob.top) named.top.push_back(Named(id, value));
  return named;
}

}  // namespace swiftcache::gateway::relay
