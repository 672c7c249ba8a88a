// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/step_pace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace swiftcache::engine::sched {
namespace {

TEST(StepPaceTest, TheHeadersExample) {
  StepPace pace;
  pace.Note({.decodes = 8, .prompt_tokens = 0}, absl::Milliseconds(12));
  pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Milliseconds(76)), 128);
}

TEST(StepPaceTest, DecodesCountAsTheTokensOfPromptsThatTakeAsLong) {
  StepPace pace;
  EXPECT_EQ(pace.times().InPromptTokens({.decodes = 8, .prompt_tokens = 100}), 108) << "nothing is known yet";
  pace.Note({.decodes = 8}, absl::Milliseconds(12));
  pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
  EXPECT_EQ(pace.times().InPromptTokens({.decodes = 8}), 24);
  EXPECT_EQ(pace.times().InPromptTokens({.decodes = 8, .prompt_tokens = 100}), 124);
  EXPECT_EQ(pace.times().InPromptTokens({.decodes = 64}), 64) << "more of them take longer than what is known";
  EXPECT_EQ(pace.times().InPromptTokens({.prompt_tokens = 100}), 100);
}

TEST(StepPaceTest, AStepTakesTheTimeOfItsDecodesAndOfItsTokens) {
  StepPace pace;
  EXPECT_EQ(pace.times().Of({.decodes = 8, .prompt_tokens = 100}), absl::ZeroDuration());
  pace.Note({.decodes = 8}, absl::Milliseconds(12));
  EXPECT_EQ(pace.times().Of({.decodes = 8}), absl::Milliseconds(12));
  pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
  EXPECT_EQ(pace.times().Of({.decodes = 8, .prompt_tokens = 100}), absl::Milliseconds(62));
  EXPECT_EQ(pace.times().Of({.prompt_tokens = 100}), absl::Milliseconds(50));
}

TEST(StepPaceTest, NothingIsKnownAtFirst) {
  EXPECT_EQ(StepPace().times().PromptTokensWithin(absl::Seconds(1)), StepTimes::kUnknownTokens);
}

TEST(StepPaceTest, APromptGetsOnHoweverShortTheTimeIs) {
  StepPace pace;
  pace.Note({.decodes = 1, .prompt_tokens = 100}, absl::Seconds(1));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Milliseconds(1)), StepTimes::kLeastTokens);
  pace.Note({.decodes = 64}, absl::Seconds(2));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Seconds(1)), StepTimes::kLeastTokens);
}

TEST(StepPaceTest, SlowerStepsCountAtOnceAndFasterOnesByAndBy) {
  StepPace pace;
  pace.Note({.prompt_tokens = 100}, absl::Milliseconds(100));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Milliseconds(320)), 320);
  pace.Note({.prompt_tokens = 100}, absl::Milliseconds(200));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Milliseconds(320)), 160);
  pace.Note({.prompt_tokens = 100}, absl::Milliseconds(100));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Milliseconds(320)), 176);  // 188 before it is rounded
  for (int i = 0; i < 40; ++i) pace.Note({.prompt_tokens = 100}, absl::Milliseconds(100));
  EXPECT_NEAR(pace.times().PromptTokensWithin(absl::Milliseconds(320)), 320, 16);
}

TEST(StepPaceTest, AFewTokensTellNothing) {
  StepPace pace;
  pace.Note({.prompt_tokens = 3}, absl::Seconds(3));
  EXPECT_EQ(pace.times().PromptTokensWithin(absl::Seconds(1)), StepTimes::kUnknownTokens);
}

// A prompt whose tokens become slower the longer it gets, beside decodes of 20 ms: its steps keep close to the target.
TEST(StepPaceTest, StepsOfALongPromptKeepCloseToTheTarget) {
  constexpr absl::Duration kTarget = absl::Milliseconds(100), kDecodes = absl::Milliseconds(20);
  StepPace pace;
  pace.Note({.decodes = 8}, kDecodes);
  for (int64_t done = 0; done < 8192;) {
    const int64_t tokens = pace.times().PromptTokensWithin(kTarget);
    const absl::Duration time = kDecodes + tokens * absl::Microseconds(200 + done / 16);
    if (done > 0) {
      EXPECT_LE(time, 1.2 * kTarget) << done;
      EXPECT_GE(time, 0.5 * kTarget) << done;
    }
    pace.Note({.decodes = 8, .prompt_tokens = tokens}, time);
    done += tokens;
  }
}

// Of 64 streams one is left while a prompt is computed: its steps come to use the target, and keep to it.
TEST(StepPaceTest, TheTimeOfManyDecodesIsForgottenWhenFewAreLeftBesideAPrompt) {
  constexpr absl::Duration kTarget = absl::Milliseconds(76);
  StepPace pace;
  const auto step = [&](int64_t decodes, absl::Duration of_decodes) {
    const int64_t tokens = pace.times().PromptTokensWithin(kTarget);
    const absl::Duration time = of_decodes + tokens * absl::Microseconds(500);
    pace.Note({.decodes = decodes, .prompt_tokens = tokens}, time);
    return time;
  };
  pace.Note({.decodes = 64}, absl::Milliseconds(60));
  for (int i = 0; i < 10; ++i) EXPECT_LE(step(64, absl::Milliseconds(60)), 1.25 * kTarget) << i;
  absl::Duration last;
  for (int i = 0; i < 20; ++i) {
    last = step(1, absl::Milliseconds(6));
    EXPECT_LE(last, kTarget) << i;
  }
  EXPECT_GE(last, 0.8 * kTarget);
}

}  // namespace
}  // namespace swiftcache::engine::sched
