// SPDX-License-Identifier: Apache-2.0
// Learns how long steps take, and says how many tokens of prompts a step may compute beside running streams so that these
// have their next tokens in time.
//
//   pace.Note({.decodes = 8, .prompt_tokens = 0}, absl::Milliseconds(12));
//   pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
//   pace.PromptTokensWithin(absl::Milliseconds(76));    // 128
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace swiftcache::engine::sched {

/// A step takes what its decodes take alone, and a time for each token of a prompt, which grows with what stands before
/// it; so the last step that had such tokens counts most, at once where it was slower than those before.
/// Thread-safety: a value. Errors: none; no time is known at first, and then a step may have kUnknownTokens.
class StepPace {
 public:
  static constexpr int64_t kLeastTokens = 16;  // a prompt gets on however short the time is
  static constexpr int64_t kUnknownTokens = 64;

  struct Load {
    int64_t decodes = 0, prompt_tokens = 0;
  };
  void Note(const Load& load, absl::Duration time);
  /// A step that reads leases, for which it takes a time of its own however few its tokens are: that counts as one of
  /// decodes, had it any or not. For a pace of such steps alone; `elsewhere`: of the others.
  void NoteOnLeases(const Load& load, absl::Duration time, const StepPace& elsewhere);
  /// Whether the next step on leases should have kLeastTokens, since too long ago one had so few that it showed what
  /// reading takes; NoteOnLeases takes that step for it. `time`: PromptTokensOnLeases's.
  bool MeasuresNext(absl::Duration time);
  bool knows_prompts() const { return prompt_token_time_ > absl::ZeroDuration(); }
  /// Beside the decodes of the last step without prompts, which take no longer than any step since that had some. At
  /// least kLeastTokens.
  int64_t PromptTokensWithin(absl::Duration time) const;
  /// Of a step that reads leases. Where that takes over half of the time, fewer tokens would hardly make it shorter: then
  /// they may take as long as it does, and `time` at most.
  int64_t PromptTokensOnLeases(absl::Duration time) const;
  /// That such a step takes; zero: not known.
  absl::Duration TimeOf(const Load& load) const;
  /// How many tokens of prompts would take as long as such a step, with what is known: decodes count as much as they take.
  int64_t InPromptTokens(const Load& load) const;

 private:
  void NoteTokenTime(absl::Duration now);
  int64_t TokensIn(absl::Duration time) const;

  absl::Duration
      decode_time_;  // of the last step without prompts, or less; zero: not known. On leases: that reading takes
  absl::Duration prompt_token_time_;                            // zero: not known
  absl::Duration least_token_time_ = absl::InfiniteDuration();  // that a token of a prompt was ever seen to take
  // Of steps on leases.
  bool is_measured_ = false, measures_next_ = false;
  absl::Duration unmeasured_;  // since decode_time_ was measured last
};

}  // namespace swiftcache::engine::sched
