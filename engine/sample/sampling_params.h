// SPDX-License-Identifier: Apache-2.0
// How the next token is chosen; meaning and defaults as in proto Sampling.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace swiftcache::engine::sample {

/// Thread-safety: a value.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: all
  float min_p = 0.0f;
  uint64_t seed = 0;  // always set: the door draws one where the request has none
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<int32_t> logprobs = {};  // alternatives per token
  static constexpr int32_t kMostLogprobs = 20;

  bool repeats() const { return repetition_penalty != 1.0f; }
  /// INVALID_ARGUMENT names the field, the value, the range.
  absl::Status Validate() const;
};

}  // namespace swiftcache::engine::sample
