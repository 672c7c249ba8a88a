// SPDX-License-Identifier: Apache-2.0
// Learns how long steps take, and says how many tokens of prompts a step may compute beside running streams so that these
// have their next tokens in time.
//
//   pace.Note({.decodes = 8, .prompt_tokens = 0}, absl::Milliseconds(12));
//   pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
//   pace.times().PromptTokensWithin(absl::Milliseconds(76));    // 128
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace swiftcache::engine::sched {

struct StepLoad {
  int64_t decodes = 0, prompt_tokens = 0;
};

/// What steps take, as far as is known: a value.
struct StepTimes {
  static constexpr int64_t kLeastTokens = 16;  // a prompt gets on however short the time is
  static constexpr int64_t kUnknownTokens = 64;

  absl::Duration beside_prompts;  // what a step takes without any token of a prompt; zero: not known
  absl::Duration prompt_token;    // what each of these takes; zero: not known

  bool know_prompts() const { return prompt_token > absl::ZeroDuration(); }
  /// Of prompts, in a step that takes no longer; 0 where it would without any. REQUIRES: know_prompts().
  int64_t TokensIn(absl::Duration time) const;
  /// Likewise, in whole rows of kernels, but kLeastTokens at least; kUnknownTokens where nothing is known of prompts.
  int64_t PromptTokensWithin(absl::Duration time) const;
  /// That such a step takes; zero: not known.
  absl::Duration Of(const StepLoad& load) const;
  /// How many tokens of prompts would take as long as such a step, with what is known: decodes count as much as they take.
  int64_t InPromptTokens(const StepLoad& load) const;

  /// A slower token counts at once, a faster one by and by.
  void NotePromptToken(absl::Duration now);
};

/// A step takes what its decodes take alone, and a time for each token of a prompt, which grows with what stands before
/// it; so the last step that had such tokens counts most, at once where it was slower than those before.
/// Thread-safety: a value. Errors: none; no time is known at first.
class StepPace {
 public:
  void Note(const StepLoad& load, absl::Duration time);
  /// Beside prompts: the decodes of the last step without any, which take no longer than any step since that had some.
  const StepTimes& times() const { return times_; }
  /// That a token of a prompt was ever seen to take; zero: not known.
  absl::Duration least_token_time() const;

 private:
  StepTimes times_;
  absl::Duration least_token_time_ = absl::InfiniteDuration();
};

}  // namespace swiftcache::engine::sched
