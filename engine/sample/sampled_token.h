// SPDX-License-Identifier: Apache-2.0
// The result of sampling one row of logits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace swiftcache::engine::sample {

/// Thread-safety: a value. Units: natural logarithms.
struct SampledToken {
  int32_t token_id = 0;
  float logprob = 0;                                // set only where log-probabilities were asked for
  std::vector<std::pair<int32_t, float>> top = {};  // id and log-probability, most probable first
};

}  // namespace swiftcache::engine::sample
