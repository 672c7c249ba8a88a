// SPDX-License-Identifier: Apache-2.0
// How own memory is cleared for a loan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

// Blocks of 2 MiB, all of them written; the extents, 16 MiB each, were asked for at once, and two blocks are cleared a
// round.
class SharingLoanTest : public testing::Test {
 protected:
  SharingLoanTest() : harness_({.model = {.head_dim = 1 << 16, .block_tokens = 4}, .num_blocks = 24}) {
    std::mt19937 rng(5);
    (void)harness_.Add(RandomTokens(rng, 90, 64), 4);
    harness_.RunAll();
    for (int64_t id = 1; id <= 3; ++id) harness_.Offer(id, {8 * (id - 1), 8});
    harness_.Pump();
  }
  void EndOffer(int64_t id) { EndOfferTo(harness_, id); }
  static void EndOfferTo(SharingHarness& harness, int64_t id) {
    harness.coordinator().OnLease({.id = kv::LeaseId(id),
                                   .donor_instance = "me",
                                   .borrower_instance = "other",
                                   .state = lease::State::kReleased});
    ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("StopClearing ", id)));
    harness.Pump();
  }
  SharingHarness harness_;
};

TEST_F(SharingLoanTest, ALargeLoanIsClearedOverManyRounds) {
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 0);
  for (int round = 1; round <= 12; ++round) {
    EXPECT_LE(harness_.loop().NextWakeup(), harness_.clock().Now()) << "at once";
    harness_.loop().ServeBetweenSteps();
    EXPECT_EQ(harness_.load().kv_blocks_leased_out, (round + 3) / 4 * 8);
    if (round % 4 == 0) {
      EXPECT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("Grant ", round / 4)));
    } else {
      EXPECT_EQ(harness_.transport().log().Count(absl::StrCat("Grant ", round / 4 + 1)), 0) << "not zeroed yet";
    }
  }
  EXPECT_GT(harness_.loop().NextWakeup(), harness_.clock().Now());
}

// An offer lapses after three seconds, however long the steps are.
TEST_F(SharingLoanTest, ADonorWhoseStepsAreLongClearsMoreBetweenThem) {
  harness_.loop().ServeBetweenSteps();
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 8);
  harness_.clock().Advance(absl::Seconds(1));
  harness_.loop().ServeBetweenSteps();
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 24);
  EXPECT_TRUE(harness_.transport().log().WaitFor("Grant 2"));
}

TEST_F(SharingLoanTest, MemoryThatNobodyWroteToIsLentAtOnce) {
  SharingHarness harness({.model = {.head_dim = 1 << 16, .block_tokens = 4}, .num_blocks = 24});
  std::mt19937 rng(9);
  (void)harness.Add(RandomTokens(rng, 14, 64), 2);  // the first four blocks
  harness.RunAll();
  for (int64_t id = 1; id <= 3; ++id) harness.Offer(id, {8 * (id - 1), 8});
  harness.Pump();
  harness.loop().ServeBetweenSteps();
  EXPECT_EQ(harness.transport().log().Count("Grant 1"), 0) << "two of the four";
  for (int round = 2; round <= 3; ++round) harness.loop().ServeBetweenSteps();
  for (int64_t id = 1; id <= 3; ++id) EXPECT_TRUE(harness.transport().log().WaitFor(absl::StrCat("Grant ", id)));
}

// To begin with one is work, too: all of what was asked for at once would be begun between two steps.
TEST_F(SharingLoanTest, WhatThereIsNothingToClearOfCostsABlock) {
  SharingHarness harness({.model = {.head_dim = 1 << 16, .block_tokens = 4}, .num_blocks = 24});
  for (int64_t id = 1; id <= 6; ++id) harness.Offer(id, {4 * (id - 1), 4});
  harness.Pump();
  for (int round = 1; round <= 3; ++round) {
    harness.loop().ServeBetweenSteps();
    EXPECT_EQ(harness.load().kv_blocks_leased_out, 8 * round);
  }
}

// To move a block takes as long as to zero three, and a round has time for two.
TEST_F(SharingLoanTest, WhatARoundTakesBeyondItsPartIsMissingFromTheNext) {
  SharingHarness harness({.model = {.head_dim = 1 << 16, .block_tokens = 4}, .num_blocks = 24});
  std::mt19937 rng(9);
  (void)harness.Add(RandomTokens(rng, 4, 64), 1);  // place 0, which comes free for what moves
  harness.RunAll();
  const std::vector<int32_t> prompt = RandomTokens(rng, 29, 64);
  const auto runs = harness.Add(prompt, 8);  // places 1 to 8
  ASSERT_TRUE(harness.loop().Step());
  (void)harness.Add(RandomTokens(rng, 57, 64), 1);  // all others
  ASSERT_TRUE(harness.loop().Step());
  harness.Offer(1, {9, 7});
  harness.Offer(2, {8, 1});
  harness.Offer(3, {16, 8});
  harness.Pump();
  harness.loop().ServeBetweenSteps();
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 7);
  for (int round = 2; round <= 4; ++round) harness.loop().ServeBetweenSteps();
  EXPECT_TRUE(harness.transport().log().WaitFor("Grant 1"));
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 7) << "the fourth round had time for one block more";
  harness.loop().ServeBetweenSteps();
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 8) << "moved, which took a block's time from the sixth";
  harness.loop().ServeBetweenSteps();
  EXPECT_TRUE(harness.transport().log().WaitFor("Grant 2"));
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 8);
  harness.loop().ServeBetweenSteps();
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 16);
  harness.RunAll();
  EXPECT_EQ(runs->tokens(), FakeGreedy(harness.model(), prompt, 8));
}

TEST_F(SharingLoanTest, WhatIsNoLongerOfferedIsNotClearedAny) {
  harness_.loop().ServeBetweenSteps();
  EndOffer(3);
  EXPECT_TRUE(harness_.broker().log().WaitFor("RELEASED 3"));
  EndOffer(1);
  EXPECT_TRUE(harness_.broker().log().WaitFor("RELEASED 1"));
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 0) << "its clearing had begun";
  for (int round = 0; round < 4; ++round) harness_.loop().ServeBetweenSteps();
  EXPECT_TRUE(harness_.transport().log().WaitFor("Grant 2"));
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 8);
}

// Of eight blocks five are written, and two are cleared a round.
TEST_F(SharingLoanTest, ALoanThatCameToNothingLeavesNoMoreToClear) {
  SharingHarness harness({.model = {.head_dim = 1 << 16, .block_tokens = 4}, .num_blocks = 24});
  (void)harness.Add(RandomTokens(5, 16, 64), 4);
  harness.RunAll();
  harness.Offer(1, {0, 8});
  harness.Pump();
  harness.loop().ServeBetweenSteps();
  ASSERT_EQ(harness.load().kv_blocks_leased_out, 8);
  ASSERT_NO_FATAL_FAILURE(EndOfferTo(harness, 1));
  ASSERT_EQ(harness.load().kv_blocks_leased_out, 0);
  harness.Offer(2, {0, 8});
  harness.Pump();
  int rounds = 0;
  for (; harness.loop().NextWakeup() <= harness.clock().Now(); ++rounds) harness.loop().ServeBetweenSteps();
  EXPECT_EQ(rounds, 3);
  EXPECT_TRUE(harness.transport().log().WaitFor("Grant 2"));
}

TEST_F(SharingLoanTest, ANeedThatIsCancelledLeavesNothingToDo) {
  harness_.loop().ServeBetweenSteps();
  std::mt19937 rng(9);
  (void)harness_.Add(RandomTokens(rng, 80, 64), 4);
  EXPECT_TRUE(harness_.loop().Step());  // what there is room for
  harness_.loop().Cancel("r1", {});
  harness_.loop().ServeBetweenSteps();
  EXPECT_GT(harness_.loop().NextWakeup(), harness_.clock().Now());
}

TEST_F(SharingLoanTest, ANeedOfOnesOwnEndsClearingAtOnce) {
  harness_.loop().ServeBetweenSteps();
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 8);
  std::mt19937 rng(9);
  const std::vector<int32_t> prompt = RandomTokens(rng, 80, 64);  // twenty blocks, where sixteen are left
  const auto recording = harness_.Add(prompt, 4);
  harness_.RunAll();
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, 4));
  for (int64_t id = 1; id <= 3; ++id) EXPECT_TRUE(harness_.broker().log().WaitFor(absl::StrCat("RELEASED ", id)));
  EXPECT_EQ(harness_.transport().log().Count("Grant 1"), 0);
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 0);
}

// A step computes at most 512 tokens of it.
TEST(SharingNeedTest, APromptOf32000TokensTakesItsMemoryBackInOneRound) {
  constexpr int64_t kTokens = 32'000, kLeases = 8, kBlocks = 250;
  SharingHarness harness({.model = {.block_tokens = 16}, .num_blocks = 16 + kLeases * kBlocks});
  for (int64_t id = 1; id <= kLeases; ++id) harness.LendAway(id, {16 + (id - 1) * kBlocks, kBlocks});
  std::mt19937 rng(9);
  (void)harness.Add(RandomTokens(rng, kTokens, 64), 1);
  EXPECT_FALSE(harness.loop().Step()) << "the prefill waits for all of its room";
  EXPECT_TRUE(harness.broker().log().WaitFor("ScaleUp 1984"));
  for (int64_t id = 1; id <= kLeases; ++id) {
    EXPECT_TRUE(harness.transport().log().WaitFor(absl::StrCat("SendRevoke ", id))) << "before any of them is back";
  }
  for (int64_t id = 1; id <= kLeases; ++id) harness.coordinator().OnReleased(kv::LeaseId(id));
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.heard().Count(absl::StrCat("TakeBack ", kLeases)) > 0; }));
  for (int step = 0; step < 4; ++step) {
    harness.Pump();
    EXPECT_TRUE(harness.loop().Step());
    EXPECT_EQ(harness.rows(), 512);
  }
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 0);
  std::vector<std::string> needs = harness.broker().log().calls();
  std::erase_if(needs, [](const std::string& call) { return !call.starts_with("ScaleUp"); });
  EXPECT_THAT(needs, testing::ElementsAre("ScaleUp 1984"));
}

}  // namespace
}  // namespace swiftcache::engine::exec
