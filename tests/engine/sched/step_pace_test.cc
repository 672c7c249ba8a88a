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
  EXPECT_EQ(pace.PromptTokensWithin(absl::Milliseconds(76)), 128);
}

TEST(StepPaceTest, DecodesCountAsTheTokensOfPromptsThatTakeAsLong) {
  StepPace pace;
  EXPECT_EQ(pace.InPromptTokens({.decodes = 8, .prompt_tokens = 100}), 108) << "nothing is known yet";
  pace.Note({.decodes = 8}, absl::Milliseconds(12));
  pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
  EXPECT_EQ(pace.InPromptTokens({.decodes = 8}), 24);
  EXPECT_EQ(pace.InPromptTokens({.decodes = 8, .prompt_tokens = 100}), 124);
  EXPECT_EQ(pace.InPromptTokens({.decodes = 64}), 64) << "more of them take longer than what is known";
  EXPECT_EQ(pace.InPromptTokens({.prompt_tokens = 100}), 100);
}

TEST(StepPaceTest, AStepTakesTheTimeOfItsDecodesAndOfItsTokens) {
  StepPace pace;
  EXPECT_EQ(pace.TimeOf({.decodes = 8, .prompt_tokens = 100}), absl::ZeroDuration());
  pace.Note({.decodes = 8}, absl::Milliseconds(12));
  EXPECT_EQ(pace.TimeOf({.decodes = 8}), absl::Milliseconds(12));
  pace.Note({.decodes = 8, .prompt_tokens = 256}, absl::Milliseconds(140));
  EXPECT_EQ(pace.TimeOf({.decodes = 8, .prompt_tokens = 100}), absl::Milliseconds(62));
  EXPECT_EQ(pace.TimeOf({.prompt_tokens = 100}), absl::Milliseconds(50));
}

TEST(StepPaceTest, NothingIsKnownAtFirst) {
  EXPECT_EQ(StepPace().PromptTokensWithin(absl::Seconds(1)), StepPace::kUnknownTokens);
}

TEST(StepPaceTest, APromptGetsOnHoweverShortTheTimeIs) {
  StepPace pace;
  pace.Note({.decodes = 1, .prompt_tokens = 100}, absl::Seconds(1));
  EXPECT_EQ(pace.PromptTokensWithin(absl::Milliseconds(1)), StepPace::kLeastTokens);
  pace.Note({.decodes = 64}, absl::Seconds(2));
  EXPECT_EQ(pace.PromptTokensWithin(absl::Seconds(1)), StepPace::kLeastTokens);
}

TEST(StepPaceTest, SlowerStepsCountAtOnceAndFasterOnesByAndBy) {
  StepPace pace;
  pace.Note({.prompt_tokens = 100}, absl::Milliseconds(100));
  EXPECT_EQ(pace.PromptTokensWithin(absl::Milliseconds(320)), 320);
  pace.Note({.prompt_tokens = 100}, absl::Milliseconds(200));
  EXPECT_EQ(pace.PromptTokensWithin(absl::Milliseconds(320)), 160);
  pace.Note({.prompt_tokens = 100}, absl::Milliseconds(100));
  EXPECT_EQ(pace.PromptTokensWithin(absl::Milliseconds(320)), 176);  // 188 before it is rounded
  for (int i = 0; i < 40; ++i) pace.Note({.prompt_tokens = 100}, absl::Milliseconds(100));
  EXPECT_NEAR(pace.PromptTokensWithin(absl::Milliseconds(320)), 320, 16);
}

TEST(StepPaceTest, AFewTokensTellNothing) {
  StepPace pace;
  pace.Note({.prompt_tokens = 3}, absl::Seconds(3));
  EXPECT_EQ(pace.PromptTokensWithin(absl::Seconds(1)), StepPace::kUnknownTokens);
}

// A prompt whose tokens become slower the longer it gets, beside decodes of 20 ms: its steps keep close to the target.
TEST(StepPaceTest, StepsOfALongPromptKeepCloseToTheTarget) {
  constexpr absl::Duration kTarget = absl::Milliseconds(100), kDecodes = absl::Milliseconds(20);
  StepPace pace;
  pace.Note({.decodes = 8}, kDecodes);
  for (int64_t done = 0; done < 8192;) {
    const int64_t tokens = pace.PromptTokensWithin(kTarget);
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
    const int64_t tokens = pace.PromptTokensWithin(kTarget);
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

// Steps of a prompt alone on leases, which take `fixed` for reading them and a time for each token. Other steps take as
// long a token, or less.
class LonePromptOnLeases {
 public:
  explicit LonePromptOnLeases(absl::Duration of_a_token, absl::Duration elsewhere) : of_a_token_(of_a_token) {
    elsewhere_.Note({.prompt_tokens = 500}, 500 * elsewhere);
  }
  void NoteElsewhere(const StepPace::Load& load, absl::Duration time) { elsewhere_.Note(load, time); }
  void NoteDecode(absl::Duration time) { pace_.NoteOnLeases({.decodes = 1}, time, elsewhere_); }
  absl::Duration Step(absl::Duration fixed, double slower = 1) {
    const StepPace& pace = pace_.knows_prompts() ? pace_ : elsewhere_;
    measures_ = pace_.MeasuresNext(kLimit);
    tokens_ = measures_ ? StepPace::kLeastTokens : pace.PromptTokensOnLeases(kLimit);
    const absl::Duration time = (fixed + tokens_ * of_a_token_) * slower;
    pace_.NoteOnLeases({.prompt_tokens = tokens_}, time, elsewhere_);
    return time;
  }
  bool measures() const { return measures_; }
  int64_t tokens() const { return tokens_; }

  static constexpr absl::Duration kLimit = absl::Milliseconds(200);

 private:
  const absl::Duration of_a_token_;
  StepPace elsewhere_, pace_;
  bool measures_ = false;
  int64_t tokens_ = 0;
};
constexpr absl::Duration kToken = absl::Microseconds(100), kLimit = LonePromptOnLeases::kLimit;

TEST(StepPaceTest, WhatReadingLeasesTakesIsNotPutDownToAPromptsTokens) {
  for (const absl::Duration elsewhere : {kToken, kToken / 2}) {
    for (const bool decodes_before : {false, true}) {
      LonePromptOnLeases prompt(kToken, elsewhere);
      if (decodes_before) prompt.NoteDecode(0.6 * kLimit);
      int few = 0;
      for (int i = 0; i < 60; ++i) {
        const absl::Duration time = prompt.Step(0.6 * kLimit);
        if (prompt.measures()) {
          ++few;
        } else if (i > 0) {
          EXPECT_GE(prompt.tokens(), 600) << i;
          EXPECT_LE(time, 1.25 * kLimit) << i;
        }
      }
      EXPECT_LE(few, 2);
    }
  }
}

// Fewer tokens are no remedy then: they may take the whole time beside the reading.
TEST(StepPaceTest, StepsOnLeasesThatCannotKeepToTheirTimeHaveManyTokensAllTheSame) {
  for (const double fixed : {1.1, 1.5, 4.0}) {
    LonePromptOnLeases prompt(kToken, kToken);
    absl::Duration last;
    for (int i = 0; i < 60; ++i) {
      const absl::Duration time = prompt.Step(fixed * kLimit);
      if (prompt.measures()) continue;
      EXPECT_GE(prompt.tokens(), 400) << i;
      last = time;
    }
    EXPECT_NEAR(absl::FDivDuration(last, kLimit), fixed + 1, 0.1) << fixed;
  }
}

TEST(StepPaceTest, AFewSlowTokensElsewhereDoNotHideWhatReadingLeasesTakes) {
  LonePromptOnLeases prompt(kToken, kToken);
  prompt.NoteElsewhere({.prompt_tokens = 10}, 100 * kToken);
  for (int i = 0; i < 300; ++i) {
    (void)prompt.Step(1.1 * kLimit);
    EXPECT_TRUE(prompt.measures() || i < 40 || prompt.tokens() >= 1000) << i << ": " << prompt.tokens();
  }
}

TEST(StepPaceTest, StepsOnLeasesKeepToTheirTimeWhereItIsTheTokensThatTakeIt) {
  for (const absl::Duration elsewhere : {kToken, kToken / 3}) {
    for (const int64_t slow : {1, 20, 100}) {
      LonePromptOnLeases prompt(slow * kToken, slow * elsewhere);
      (void)prompt.Step(absl::ZeroDuration());  // the first that reads any is as long as they are elsewhere
      for (int i = 0; i < 60; ++i) EXPECT_LE(prompt.Step(absl::ZeroDuration()), 1.01 * kLimit) << slow << " " << i;
      EXPECT_GE(prompt.tokens(), 1600 / slow);
    }
  }
}

TEST(StepPaceTest, AsMoreIsReadOfLeasesTheirTokensTakeNoLongerThanThatNorThanTheLimit) {
  LonePromptOnLeases prompt(kToken, kToken);
  int64_t done = 0, steps = 0;
  for (; done < 200'000; ++steps) {
    const absl::Duration fixed = done * absl::Microseconds(3);  // three times the limit at the end
    const absl::Duration time = prompt.Step(fixed);
    EXPECT_LE(time, 1.05 * std::max(kLimit, fixed + std::min(fixed, kLimit))) << done;
    done += prompt.tokens();
  }
  EXPECT_LE(steps, 200);
}

TEST(StepPaceTest, WhatWasReadOfLeasesIsForgottenWhenLittleIs) {
  for (const absl::Duration elsewhere : {kToken, kToken / 2}) {
    LonePromptOnLeases prompt(kToken, elsewhere);
    prompt.NoteDecode(10 * kLimit);
    for (int i = 0; i < 40; ++i) {
      const absl::Duration time = prompt.Step(0.1 * kLimit);
      if (i > (elsewhere == kToken ? 1 : 32)) {  // at once, or by what is measured after 64 times the limit
        EXPECT_LE(time, 1.05 * kLimit) << i;
      }
    }
  }
}

TEST(StepPaceTest, AStepOnLeasesThatWasSlowByAccidentIsForgottenSoon) {
  LonePromptOnLeases prompt(kToken, kToken);
  for (int i = 0; i < 40; ++i) {
    (void)prompt.Step(0.9 * kLimit, /*slower=*/i == 20 ? 4 : 1);
    EXPECT_TRUE(prompt.measures() || prompt.tokens() >= 200) << i;
  }
  EXPECT_GE(prompt.tokens(), 1500);
}

// Or it would be measured again and again, with few tokens each time.
TEST(StepPaceTest, WhereManyPromptsShareAStepThatWasToMeasureItIsNotRepeated) {
  StepPace elsewhere, pace;
  elsewhere.Note({.prompt_tokens = 500}, 500 * kToken);
  int64_t measures = 0;
  for (int i = 0; i < 50; ++i) {
    const bool measures_next = pace.MeasuresNext(kLimit);
    measures += measures_next;
    pace.NoteOnLeases({.prompt_tokens = measures_next ? 64 : 500}, kLimit, elsewhere);
  }
  EXPECT_LE(measures, 20);
}

}  // namespace
}  // namespace swiftcache::engine::sched
