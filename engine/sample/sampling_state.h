// SPDX-License-Identifier: Apache-2.0
// The sampling state of one continuation: its parameters and, if there are penalties, the tokens that it has seen.
//
//   const std::vector<SeenToken> in_prompt = SeenIn(prompt, params);    // once for all continuations
//   SamplingState state(params, /*continuation=*/0, in_prompt);
//   state.Observe(token);
//   for (const SeenToken& seen : state.seen()) logits[seen.id] = PenalisedLogit(logits[seen.id], seen, params);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sample/sampling_params.h"

namespace swiftcache::engine::sample {

/// A token whose logit the penalties change.
struct SeenToken {
  int32_t id = 0;
  int32_t occurrences = 0;  // in the output; 0: in the prompt alone
};

/// What penalties make of the logit of a token that was seen. They are vLLM's: repetition over prompt and output
/// (divides positive logits, multiplies negative ones), then presence and frequency over the output alone (subtracted).
inline float PenalisedLogit(float logit, const SeenToken& seen, const SamplingParams& params) {
  logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  if (seen.occurrences == 0) return logit;
  return logit - (params.frequency_penalty * static_cast<float>(seen.occurrences) + params.presence_penalty);
}

/// What a continuation has seen before its first token: with a repetition penalty each id of the prompt once, ascending.
/// Costs a sort.
std::vector<SeenToken> SeenIn(std::span<const int32_t> prompt, const SamplingParams& params);

/// Thread-safety: none. Ownership: a value. Errors: none; parameters were validated.
class SamplingState {
 public:
  /// `in_prompt`: SeenIn of the prompt and these parameters.
  SamplingState(const SamplingParams& params, int32_t continuation, std::span<const SeenToken> in_prompt)
      : params_(params), continuation_(continuation), seen_(in_prompt.begin(), in_prompt.end()) {}

  /// Adds a token of the output. Costs a binary search, and an insertion into a vector for a token not seen before.
  void Observe(int32_t token);

  /// The tokens to be penalised, by ascending id, each once; ids may lie outside the logits. Valid until the next
  /// Observe. A sorted array, so that a device gets it by one copy, and code for a part of the vocabulary finds its
  /// part.
  std::span<const SeenToken> seen() const { return seen_; }

  bool has_penalties() const { return params_.repeats() || counts(); }
  const SamplingParams& params() const { return params_; }
  int32_t continuation() const { return continuation_; }

 private:
  bool counts() const { return params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f; }

  SamplingParams params_;
  int32_t continuation_;
  std::vector<SeenToken> seen_;  // the prompt's only with a repetition penalty; empty without penalties
};

}  // namespace swiftcache::engine::sample
