// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampling_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

namespace swiftcache::engine::sample {

bool operator==(const SeenToken& a, const SeenToken& b) { return a.id == b.id && a.occurrences == b.occurrences; }

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<int32_t> kPrompt = {7, 3, 7, -2};

TEST(SamplingStateTest, WithoutPenaltiesNothingIsKept) {
  SamplingState state({}, 0, SeenIn(kPrompt, {}));
  state.Observe(5);
  EXPECT_FALSE(state.has_penalties());
  EXPECT_THAT(state.seen(), IsEmpty());
}

TEST(SamplingStateTest, ARepetitionPenaltyKeepsPromptAndOutputById) {
  const SamplingParams params{.repetition_penalty = 1.1f};
  SamplingState state(params, 0, SeenIn(kPrompt, params));
  for (int32_t token : {5, 3, 5}) state.Observe(token);
  EXPECT_THAT(state.seen(), ElementsAre(SeenToken{-2, 0}, SeenToken{3, 1}, SeenToken{5, 2}, SeenToken{7, 0}));
}

TEST(SamplingStateTest, PresenceAndFrequencyPenaltiesKeepTheOutputAlone) {
  for (const SamplingParams& params : {SamplingParams{.presence_penalty = 1}, SamplingParams{.frequency_penalty = 1}}) {
    SamplingState state(params, 0, SeenIn(kPrompt, params));
    for (int32_t token : {5, 3, 5}) state.Observe(token);
    EXPECT_THAT(state.seen(), ElementsAre(SeenToken{3, 1}, SeenToken{5, 2}));
  }
}

TEST(SamplingStateTest, ManyTokensAreCountedAsAMapCountsThem) {
  std::mt19937 rng(30);
  SamplingState state({.frequency_penalty = 1}, 0, {});
  std::map<int32_t, int32_t> expected;
  for (int i = 0; i < 3000; ++i) {
    const int32_t token = rng() % 700;
    state.Observe(token);
    ++expected[token];
  }
  ASSERT_EQ(state.seen().size(), expected.size());
  auto at = expected.begin();
  for (const SeenToken& seen : state.seen()) {
    EXPECT_EQ(seen.id, at->first);
    EXPECT_EQ(seen.occurrences, at++->second);
  }
}

TEST(PenalisedLogitTest, RepetitionDrawsBothSignsDown) {
  const SamplingParams params{.repetition_penalty = 2};
  EXPECT_EQ(PenalisedLogit(3, {.id = 0, .occurrences = 0}, params), 1.5f);
  EXPECT_EQ(PenalisedLogit(-3, {.id = 0, .occurrences = 4}, params), -6);
  EXPECT_EQ(PenalisedLogit(-INFINITY, {}, params), -INFINITY);
  EXPECT_TRUE(std::isnan(PenalisedLogit(NAN, {}, params)));
}

TEST(PenalisedLogitTest, PresenceCountsOnceFrequencyEveryTimeAndThePromptNot) {
  const SamplingParams params{.presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  EXPECT_EQ(PenalisedLogit(3, {.id = 0, .occurrences = 0}, params), 3);
  EXPECT_EQ(PenalisedLogit(3, {.id = 0, .occurrences = 1}, params), 2.25f);
  EXPECT_EQ(PenalisedLogit(3, {.id = 0, .occurrences = 4}, params), 1.5f);
}

}  // namespace
}  // namespace swiftcache::engine::sample
