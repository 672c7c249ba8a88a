// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/leased_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "engine/sched/step_pace.h"

namespace swiftcache::engine::sched {
namespace {

// Steps of a prompt alone on leases, which take `fixed` for reading them and a time for each token. Other steps take as
// long a token, or less.
class LonePromptOnLeases {
 public:
  explicit LonePromptOnLeases(absl::Duration of_a_token, absl::Duration elsewhere) : of_a_token_(of_a_token) {
    elsewhere_.Note({.prompt_tokens = 500}, 500 * elsewhere);
  }
  void NoteElsewhere(const StepLoad& load, absl::Duration time) { elsewhere_.Note(load, time); }
  void NoteDecode(absl::Duration time) { pace_.Note({.decodes = 1}, time); }
  absl::Duration Step(absl::Duration fixed, double slower = 1) {
    measures_ = pace_.MeasuresNext(kLimit);
    tokens_ = measures_ ? StepTimes::kLeastTokens : pace_.PromptTokensAbout(kLimit);
    const absl::Duration time = (fixed + tokens_ * of_a_token_) * slower;
    pace_.Note({.prompt_tokens = tokens_}, time);
    return time;
  }
  bool measures() const { return measures_; }
  int64_t tokens() const { return tokens_; }

  static constexpr absl::Duration kLimit = absl::Milliseconds(200);

 private:
  const absl::Duration of_a_token_;
  StepPace elsewhere_;
  LeasedPace pace_{elsewhere_};
  bool measures_ = false;
  int64_t tokens_ = 0;
};
constexpr absl::Duration kToken = absl::Microseconds(100), kLimit = LonePromptOnLeases::kLimit;

TEST(LeasedPaceTest, WhatReadingLeasesTakesIsNotPutDownToAPromptsTokens) {
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
TEST(LeasedPaceTest, StepsOnLeasesThatCannotKeepToTheirTimeHaveManyTokensAllTheSame) {
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

TEST(LeasedPaceTest, AFewSlowTokensElsewhereDoNotHideWhatReadingLeasesTakes) {
  LonePromptOnLeases prompt(kToken, kToken);
  prompt.NoteElsewhere({.prompt_tokens = 10}, 100 * kToken);
  for (int i = 0; i < 300; ++i) {
    (void)prompt.Step(1.1 * kLimit);
    EXPECT_TRUE(prompt.measures() || i < 40 || prompt.tokens() >= 1000) << i << ": " << prompt.tokens();
  }
}

TEST(LeasedPaceTest, StepsOnLeasesKeepToTheirTimeWhereItIsTheTokensThatTakeIt) {
  for (const absl::Duration elsewhere : {kToken, kToken / 3}) {
    for (const int64_t slow : {1, 20, 100}) {
      LonePromptOnLeases prompt(slow * kToken, slow * elsewhere);
      (void)prompt.Step(absl::ZeroDuration());  // the first that reads any is as long as they are elsewhere
      for (int i = 0; i < 60; ++i) EXPECT_LE(prompt.Step(absl::ZeroDuration()), 1.01 * kLimit) << slow << " " << i;
      EXPECT_GE(prompt.tokens(), 1600 / slow);
    }
  }
}

TEST(LeasedPaceTest, AsMoreIsReadOfLeasesTheirTokensTakeNoLongerThanThatNorThanTheLimit) {
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

TEST(LeasedPaceTest, WhatWasReadOfLeasesIsForgottenWhenLittleIs) {
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

TEST(LeasedPaceTest, AStepOnLeasesThatWasSlowByAccidentIsForgottenSoon) {
  LonePromptOnLeases prompt(kToken, kToken);
  for (int i = 0; i < 40; ++i) {
    (void)prompt.Step(0.9 * kLimit, /*slower=*/i == 20 ? 4 : 1);
    EXPECT_TRUE(prompt.measures() || prompt.tokens() >= 200) << i;
  }
  EXPECT_GE(prompt.tokens(), 1500);
}

// Or it would be measured again and again, with few tokens each time.
TEST(LeasedPaceTest, WhereManyPromptsShareAStepThatWasToMeasureItIsNotRepeated) {
  StepPace elsewhere;
  LeasedPace pace(elsewhere);
  elsewhere.Note({.prompt_tokens = 500}, 500 * kToken);
  int64_t measures = 0;
  for (int i = 0; i < 50; ++i) {
    const bool measures_next = pace.MeasuresNext(kLimit);
    measures += measures_next;
    pace.Note({.prompt_tokens = measures_next ? 64 : 500}, kLimit);
  }
  EXPECT_LE(measures, 20);
}

}  // namespace
}  // namespace swiftcache::engine::sched
