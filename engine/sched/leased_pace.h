// SPDX-License-Identifier: Apache-2.0
// Learns how long steps that read leases take, and says how many tokens of prompts such a step may compute.
//
//   LeasedPace leased(pace);                                     // StepPace of the other steps
//   const bool measures = leased.MeasuresNext(limit);            // then StepTimes::kLeastTokens, else
//   const int64_t tokens = leased.PromptTokensAbout(limit);
//   leased.Note({.prompt_tokens = tokens}, absl::Milliseconds(140));
#pragma once

#include "absl/time/time.h"
#include "engine/sched/step_pace.h"

namespace swiftcache::engine::sched {

/// Reading leases takes a time of its own, however few tokens a step has: that stands for what StepTimes has beside
/// prompts, be there decodes or not. It is measured now and then, by a step with hardly any token of a prompt. As long as
/// nothing is known of prompts on leases, the times are those of the other steps.
/// Thread-safety: none. Ownership: borrows `elsewhere`. Errors: none.
class LeasedPace {
 public:
  explicit LeasedPace(const StepPace& elsewhere) : elsewhere_(elsewhere) {}

  void Note(const StepLoad& load, absl::Duration time);
  /// Whether the next step should have StepTimes::kLeastTokens of prompts, since too long ago one had so few that it
  /// showed what reading takes; Note takes that step for it. `time`: PromptTokensAbout's.
  bool MeasuresNext(absl::Duration time);
  /// Where reading takes over half of the time, fewer tokens would hardly make the step shorter: then they may take as long
  /// as it does, and `time` at most.
  int64_t PromptTokensAbout(absl::Duration time) const;
  const StepTimes& times() const { return times_.know_prompts() ? times_ : elsewhere_.times(); }

 private:
  const StepPace& elsewhere_;
  StepTimes times_;
  bool is_measured_ = false, measures_next_ = false;
  absl::Duration unmeasured_;  // time of steps since reading was measured last
};

}  // namespace swiftcache::engine::sched
