// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/step_pace.h"

#include <algorithm>

namespace swiftcache::engine::sched {
namespace {

constexpr int64_t kEnoughTokens = 8;  // of fewer, a step tells little
constexpr double kKept = 0.7;         // of what was known, where a step was faster
constexpr int64_t kRoundTo = 16;      // kernels compute so many rows together

}  // namespace

void StepPace::Note(const Load& load, absl::Duration time) {
  if (load.prompt_tokens == 0) {
    if (load.decodes > 0) decode_time_ = time;
    return;
  }
  if (load.decodes > 0) decode_time_ = std::min(decode_time_, time);
  if (load.prompt_tokens < kEnoughTokens) return;
  const absl::Duration decodes = load.decodes > 0 ? std::min(decode_time_, time / 2) : absl::ZeroDuration();
  const absl::Duration now = (time - decodes) / load.prompt_tokens;
  prompt_token_time_ = std::max(now, kKept * prompt_token_time_ + (1 - kKept) * now);
}

int64_t StepPace::PromptTokensWithin(absl::Duration time) const {
  if (prompt_token_time_ <= absl::ZeroDuration()) return kUnknownTokens;
  absl::Duration rest;
  const int64_t tokens =
      absl::IDivDuration(std::max(time - decode_time_, absl::ZeroDuration()), prompt_token_time_, &rest);
  return std::max(tokens - tokens % kRoundTo, kLeastTokens);
}

absl::Duration StepPace::TimeOf(const Load& load) const {
  return (load.decodes > 0 ? decode_time_ : absl::ZeroDuration()) + load.prompt_tokens * prompt_token_time_;
}

int64_t StepPace::InPromptTokens(const Load& load) const {
  if (prompt_token_time_ <= absl::ZeroDuration()) return load.decodes + load.prompt_tokens;
  absl::Duration rest;
  const int64_t in_decodes = absl::IDivDuration(TimeOf({.decodes = load.decodes}), prompt_token_time_, &rest);
  return load.prompt_tokens + std::max(load.decodes, in_decodes);
}

}  // namespace swiftcache::engine::sched
