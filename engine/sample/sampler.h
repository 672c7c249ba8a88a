// SPDX-License-Identifier: Apache-2.0
// From a row of logits to a token.
//
//   Sampler sampler;
//   ASSIGN_OR_RETURN(SampledToken token, sampler.Sample(logits, state, /*position=*/prompt.size()));
//   state.Observe(token.token_id);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/sample/sampled_token.h"
#include "engine/sample/sampling_state.h"

namespace swiftcache::engine::sample {

/// Chooses tokens. Order of the rules, as in vLLM: penalties, temperature, min-p, top-k, top-p (over what top-k left).
/// Where values tie, the lowest id comes first. Log-probabilities are those of the logits as the model gave them. NaN
/// counts as impossible, +inf as the largest finite float. The result depends on logits, state and position alone.
/// Thread-safety: none (owns scratch). Errors: INTERNAL where no logit is a number above -inf. Units: natural
/// logarithms.
class Sampler {
 public:
  /// logits: [vocab], not changed. `position`: of the token to be drawn, counted from the prompt's first token.
  absl::StatusOr<SampledToken> Sample(std::span<const float> logits, const SamplingState& state, int64_t position);

 private:
  std::span<const float> Penalised(std::span<const float> logits, const SamplingState& state);
  int32_t Draw(std::span<const float> logits, const SamplingParams& params, double max, double uniform);
  void CollectCandidates(std::span<const float> logits, double floor);
  void KeepTopK(std::span<const float> logits, int64_t k);
  void KeepTopP(std::span<const float> logits, const SamplingParams& params, double max);

  std::vector<float> penalised_;
  std::vector<int32_t> candidates_;
  std::vector<double> weights_;
};

}  // namespace swiftcache::engine::sample
