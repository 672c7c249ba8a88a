// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/step_pace.h"

#include <algorithm>

namespace swiftcache::engine::sched {
namespace {

constexpr int64_t kEnoughTokens = 8;  // of fewer, a step tells little
constexpr double kKept = 0.7;         // of what was known, where a step was faster
constexpr int64_t kRoundTo = 16;      // kernels compute so many rows together

}  // namespace

int64_t StepTimes::TokensIn(absl::Duration time) const {
  absl::Duration rest;
  return absl::IDivDuration(std::max(time - beside_prompts, absl::ZeroDuration()), prompt_token, &rest);
}

int64_t StepTimes::PromptTokensWithin(absl::Duration time) const {
  if (!know_prompts()) return kUnknownTokens;
  const int64_t tokens = TokensIn(time);
  return std::max(tokens - tokens % kRoundTo, kLeastTokens);
}

absl::Duration StepTimes::Of(const StepLoad& load) const {
  return (load.decodes > 0 ? beside_prompts : absl::ZeroDuration()) + load.prompt_tokens * prompt_token;
}

int64_t StepTimes::InPromptTokens(const StepLoad& load) const {
  if (!know_prompts()) return load.decodes + load.prompt_tokens;
  absl::Duration rest;
  const int64_t in_decodes = absl::IDivDuration(Of({.decodes = load.decodes}), prompt_token, &rest);
  return load.prompt_tokens + std::max(load.decodes, in_decodes);
}

void StepTimes::NotePromptToken(absl::Duration now) {
  prompt_token = std::max(now, kKept * prompt_token + (1 - kKept) * now);
}

void StepPace::Note(const StepLoad& load, absl::Duration time) {
  if (load.prompt_tokens == 0) {
    if (load.decodes > 0) times_.beside_prompts = time;
    return;
  }
  if (load.decodes > 0) times_.beside_prompts = std::min(times_.beside_prompts, time);
  if (load.prompt_tokens < kEnoughTokens) return;
  const absl::Duration decodes = load.decodes > 0 ? std::min(times_.beside_prompts, time / 2) : absl::ZeroDuration();
  const absl::Duration now = (time - decodes) / load.prompt_tokens;
  if (now > absl::ZeroDuration()) least_token_time_ = std::min(least_token_time_, now);
  times_.NotePromptToken(now);
}

absl::Duration StepPace::least_token_time() const {
  return times_.know_prompts() ? least_token_time_ : absl::ZeroDuration();
}

}  // namespace swiftcache::engine::sched
