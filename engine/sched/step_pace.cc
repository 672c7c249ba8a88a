// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/step_pace.h"

#include <algorithm>
#include <utility>

namespace swiftcache::engine::sched {
namespace {

constexpr int64_t kEnoughTokens = 8;  // of fewer, a step tells little
constexpr double kKept = 0.7;         // of what was known, where a step was faster
constexpr int64_t kRoundTo = 16;      // kernels compute so many rows together
constexpr int64_t kHardlyAny = 32;    // tokens of a step on leases
static_assert(StepPace::kLeastTokens <= kHardlyAny, "or nothing is measured");
// What reading leases takes is measured after so many times the time of a step, the first time soon.
constexpr int kMeasureAfter = 64, kMeasureFirstAfter = 2;

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
  if (now > absl::ZeroDuration()) least_token_time_ = std::min(least_token_time_, now);
  NoteTokenTime(now);
}

// A token takes no less than it ever did elsewhere, so that what is left is an upper bound of the rest: close to it where
// there are hardly any tokens, else in the way of a larger one that was measured when more was read.
void StepPace::NoteOnLeases(const Load& load, absl::Duration time, const StepPace& elsewhere) {
  if (!knows_prompts()) prompt_token_time_ = elsewhere.prompt_token_time_;
  const absl::Duration least = elsewhere.knows_prompts() ? elsewhere.least_token_time_ : absl::ZeroDuration();
  const absl::Duration rest = std::max(time - load.prompt_tokens * least, absl::ZeroDuration());
  const bool measures = load.prompt_tokens <= kHardlyAny;
  unmeasured_ = std::exchange(measures_next_, false) || measures ? absl::ZeroDuration() : unmeasured_ + time;
  if (measures) {
    is_measured_ = true;
    decode_time_ = rest;
    return;
  }
  decode_time_ = std::min(decode_time_, rest);
  NoteTokenTime((time - std::min(decode_time_, time * 7 / 8)) / load.prompt_tokens);
}

bool StepPace::MeasuresNext(absl::Duration time) {
  measures_next_ = unmeasured_ > (is_measured_ ? kMeasureAfter : kMeasureFirstAfter) * time;
  return measures_next_;
}

void StepPace::NoteTokenTime(absl::Duration now) {
  prompt_token_time_ = std::max(now, kKept * prompt_token_time_ + (1 - kKept) * now);
}

int64_t StepPace::TokensIn(absl::Duration time) const {
  absl::Duration rest;
  return absl::IDivDuration(std::max(time - decode_time_, absl::ZeroDuration()), prompt_token_time_, &rest);
}

int64_t StepPace::PromptTokensWithin(absl::Duration time) const {
  if (!knows_prompts()) return kUnknownTokens;
  const int64_t tokens = TokensIn(time);
  return std::max(tokens - tokens % kRoundTo, kLeastTokens);
}

// Tokens may take what reading does, but no more than the whole time, so that a layer still ends. Not rounded: where a few
// tokens more take hardly longer, what they are rounded to would be all there ever are.
int64_t StepPace::PromptTokensOnLeases(absl::Duration time) const {
  if (!knows_prompts()) return kUnknownTokens;
  return std::max(TokensIn(std::max(time, decode_time_ + std::min(decode_time_, time))), kLeastTokens);
}

absl::Duration StepPace::TimeOf(const Load& load) const {
  return (load.decodes > 0 ? decode_time_ : absl::ZeroDuration()) + load.prompt_tokens * prompt_token_time_;
}

int64_t StepPace::InPromptTokens(const Load& load) const {
  if (!knows_prompts()) return load.decodes + load.prompt_tokens;
  absl::Duration rest;
  const int64_t in_decodes = absl::IDivDuration(TimeOf({.decodes = load.decodes}), prompt_token_time_, &rest);
  return load.prompt_tokens + std::max(load.decodes, in_decodes);
}

}  // namespace swiftcache::engine::sched
