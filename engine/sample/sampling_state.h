// SPDX-License-Identifier: Apache-2.0
// What one continuation carries from token to token: its parameters and, where penalties ask for it, what it has seen.
//
//   SamplingState state(params, /*continuation=*/0, prompt);
//   state.Observe(token);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "engine/sample/sampling_params.h"

namespace swiftcache::engine::sample {

/// Penalties are vLLM's: repetition over prompt and output (divides positive logits, multiplies negative ones),
/// presence and frequency over the output alone (subtracted). Thread-safety: none. Ownership: a value. Errors: none;
/// parameters were validated, ids outside the logits are ignored.
class SamplingState {
 public:
  SamplingState(const SamplingParams& params, int32_t continuation, std::span<const int32_t> prompt);

  /// A token of the output, once each.
  void Observe(int32_t token);

  /// Changes the logits of the tokens seen. logits: [vocab].
  void Penalise(std::span<float> logits) const;

  bool has_penalties() const { return repeats() || counts(); }
  const SamplingParams& params() const { return params_; }
  int32_t continuation() const { return continuation_; }

 private:
  bool repeats() const { return params_.repetition_penalty != 1.0f; }
  bool counts() const { return params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f; }

  SamplingParams params_;
  int32_t continuation_;
  absl::flat_hash_set<int32_t> seen_;                  // prompt and output; only with a repetition penalty
  absl::flat_hash_map<int32_t, int64_t> occurrences_;  // output; only with presence or frequency penalty
};

}  // namespace swiftcache::engine::sample
