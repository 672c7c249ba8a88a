// SPDX-License-Identifier: Apache-2.0
// How long steps are that read leases, in the time that a model takes for them.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/exec/cut_short_fixture.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kLeaseOfAll = 7, kLayersOfStep = 10;
constexpr absl::Duration kMillisecond = absl::Milliseconds(1);

// However slow or fast the model is: a layer takes an eighth of the 50 ms within which donors want their memory back.
TEST(StepsOnLeasesTest, AStepOnLeasesHasAsManyTokensAsALayerHasTimeFor) {
  struct Case {
    absl::Duration token_time;
    int64_t rows;
  };
  for (const Case& c :
       {Case{absl::Microseconds(50), 126}, {absl::Microseconds(100), 63}, {absl::Microseconds(400), 17}}) {
    SharingHarness harness({.model = {.num_layers = kLayersOfStep, .block_tokens = 4}, .num_blocks = 200});
    harness.Borrow(kLeaseOfAll, 512);
    harness.during_layer = [&](int64_t) { harness.clock().Advance(harness.rows() * c.token_time); };
    const std::vector<int32_t> prompt = RandomTokens(5, 2000, harness.model().vocab_size);
    const auto recording = harness.Add(prompt, 8);
    while (harness.load().kv_blocks_leased_in_used == 0) (void)RowsOfNextStep(harness);
    EXPECT_EQ(RowsOfNextStep(harness), c.rows) << c.token_time;
    harness.during_layer = nullptr;
    harness.RunAll();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, 8));
  }
}

// Donors answer before the next.
int64_t RowsOfAnsweredStep(SharingHarness& harness) {
  const int64_t rows = RowsOfNextStep(harness);
  harness.LandStores();
  harness.AwaitCoordinator();
  harness.Pump();
  harness.loop().ServeBetweenSteps();
  return rows;
}

// Layers take `on_leases` where leases are read, and a time for each row.
struct LayerTimes {
  absl::Duration on_leases, of_a_row;
};

// The rows of each step that reads leases, without the last, of a prompt that is alone on them; `before_it`: there was a
// stream that read them, so that it is known what decodes take there.
std::vector<int64_t> RowsOfLonePrompt(const LayerTimes& times, bool before_it) {
  SharingHarness harness(
      {.model = {.num_layers = kLayersOfStep, .block_tokens = 4}, .num_blocks = 200, .max_tokens_on_leases = 512});
  harness.Borrow(kLeaseOfAll, 1024);
  bool reads = false;
  harness.during_step = [&] { reads = harness.load().kv_blocks_leased_in_held > 0; };
  harness.during_layer = [&](int64_t) {
    harness.clock().Advance((reads ? times.on_leases : absl::ZeroDuration()) + harness.rows() * times.of_a_row);
  };
  if (before_it) {
    (void)harness.Add(RandomTokens(4, 900, harness.model().vocab_size), 20);
    harness.RunAll();
  }
  const auto recording = harness.Add(RandomTokens(5, 3500, harness.model().vocab_size), 1);
  std::vector<int64_t> rows;
  while (!recording->done() && rows.size() < 300) {
    const int64_t of_step = RowsOfAnsweredStep(harness);
    if (reads) rows.push_back(of_step);
  }
  rows.pop_back();
  return rows;
}

// Of the 62.5 ms that a step may take it leaves 25, for 500 tokens.
TEST(StepsOnLeasesTest, WhatReadingLeasesTakesLeavesALonePromptTheRestOfTheTime) {
  for (const bool before_it : {false, true}) {
    const std::vector<int64_t> rows =
        RowsOfLonePrompt({.on_leases = 3.75 * kMillisecond, .of_a_row = 0.005 * kMillisecond}, before_it);
    EXPECT_LE(rows.size(), 14) << "2700 tokens, or a few more";
    EXPECT_EQ(rows.back(), 256) << before_it << ": all that spilling keeps room for";
  }
}

TEST(StepsOnLeasesTest, WhereReadingLeasesTakesLongerThanAStepMayFewerTokensAreNoRemedy) {
  for (const bool before_it : {false, true}) {
    const std::vector<int64_t> rows =
        RowsOfLonePrompt({.on_leases = 10 * kMillisecond, .of_a_row = 0.005 * kMillisecond}, before_it);
    EXPECT_LE(rows.size(), 14) << before_it << ": some 160 of the fewest tokens";
    EXPECT_EQ(rows.back(), 256) << before_it << ": all that spilling keeps room for";
  }
}

TEST(StepsOnLeasesTest, AStreamOnLeasesHasItsTokensInTimeWhileALongPromptArrives) {
  const absl::Duration kTarget = 40 * kMillisecond;
  SharingHarness harness(
      {.model = {.num_layers = kLayersOfStep, .block_tokens = 4}, .num_blocks = 400, .target_itl = kTarget});
  harness.Borrow(kLeaseOfAll, 1024);
  bool reads = false;
  harness.during_step = [&] { reads = harness.load().kv_blocks_leased_in_held > 0; };
  harness.during_layer = [&](int64_t) {
    harness.clock().Advance((reads ? 2 * kMillisecond : absl::ZeroDuration()) + harness.rows() * 0.01 * kMillisecond);
  };
  const auto stream = harness.Add(RandomTokens(4, 1700, harness.model().vocab_size), 200);
  for (int i = 0; stream->tokens().size() < 4; ++i) {
    ASSERT_LT(i, 100);
    (void)RowsOfAnsweredStep(harness);
  }
  ASSERT_TRUE(reads);
  const auto prompt = harness.Add(RandomTokens(5, 1000, harness.model().vocab_size), 1);
  int64_t steps = 0;
  for (; !prompt->done() && steps < 100; ++steps) {
    const absl::Time begin = harness.clock().Now();
    (void)RowsOfAnsweredStep(harness);
    EXPECT_LE(harness.clock().Now() - begin, 1.05 * kTarget) << steps;
  }
  EXPECT_LE(steps, 10) << "1000 tokens, where each step has time for 199";
}

}  // namespace
}  // namespace swiftcache::engine::exec
