// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/leased_pace.h"

#include <algorithm>
#include <utility>

namespace swiftcache::engine::sched {
namespace {

constexpr int64_t kHardlyAny = 32;  // tokens of a step that shows what reading takes
static_assert(StepTimes::kLeastTokens <= kHardlyAny, "or nothing is measured");
// Reading is measured after so many times the time of a step, the first time soon.
constexpr int kMeasureAfter = 64, kMeasureFirstAfter = 2;

}  // namespace

// A token takes no less than it ever did elsewhere, so that what is left is an upper bound of the rest: close to it where
// there are hardly any tokens, else in the way of a larger one that was measured when more was read.
void LeasedPace::Note(const StepLoad& load, absl::Duration time) {
  if (!times_.know_prompts()) times_.prompt_token = elsewhere_.times().prompt_token;
  const absl::Duration rest = std::max(time - load.prompt_tokens * elsewhere_.least_token_time(), absl::ZeroDuration());
  const bool measures = load.prompt_tokens <= kHardlyAny;
  unmeasured_ = std::exchange(measures_next_, false) || measures ? absl::ZeroDuration() : unmeasured_ + time;
  if (measures) {
    is_measured_ = true;
    times_.beside_prompts = rest;
    return;
  }
  times_.beside_prompts = std::min(times_.beside_prompts, rest);
  times_.NotePromptToken((time - std::min(times_.beside_prompts, time * 7 / 8)) / load.prompt_tokens);
}

bool LeasedPace::MeasuresNext(absl::Duration time) {
  measures_next_ = unmeasured_ > (is_measured_ ? kMeasureAfter : kMeasureFirstAfter) * time;
  return measures_next_;
}

// Tokens may take what reading does, but no more than the whole time, so that a layer still ends. Not rounded: where a few
// tokens more take hardly longer, what they are rounded to would be all there ever are.
int64_t LeasedPace::PromptTokensAbout(absl::Duration time) const {
  const StepTimes& known = times();
  if (!known.know_prompts()) return StepTimes::kUnknownTokens;
  const absl::Duration reading = known.beside_prompts;
  return std::max(known.TokensIn(std::max(time, reading + std::min(reading, time))), StepTimes::kLeastTokens);
}

}  // namespace swiftcache::engine::sched
