// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampling_state.h"

namespace swiftcache::engine::sample {

SamplingState::SamplingState(const SamplingParams& params, int32_t continuation, std::span<const int32_t> prompt)
    : params_(params), continuation_(continuation) {
  if (repeats()) seen_.insert(prompt.begin(), prompt.end());
}

void SamplingState::Observe(int32_t token) {
  if (repeats()) seen_.insert(token);
  if (counts()) ++occurrences_[token];
}

void SamplingState::Penalise(std::span<float> logits) const {
  const auto inside = [&logits](int32_t id) { return id >= 0 && id < static_cast<int64_t>(logits.size()); };
  for (int32_t id : seen_) {
    if (!inside(id)) continue;
    float& logit = logits[id];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  for (const auto& [id, count] : occurrences_) {
    if (!inside(id)) continue;
    logits[id] -= params_.frequency_penalty * static_cast<float>(count) + params_.presence_penalty;
  }
}

}  // namespace swiftcache::engine::sample
