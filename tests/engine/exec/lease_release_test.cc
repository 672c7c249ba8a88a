// SPDX-License-Identifier: Apache-2.0
// What a revocation finds: a lease that no step reads is given back at once; blocks in use are saved before their readers
// are reset.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kRevoked = 7, kStays = 8;
constexpr int64_t kReplyTokens = 8;

class LeaseReleaseTest : public testing::TestWithParam<StreamMode> {
 protected:
  // An answer of the model to this prompt.
  void ExpectRight(const Recording& recording, const std::vector<int32_t>& prompt) {
    EXPECT_TRUE(recording.Wait().ok()) << recording.Wait();
    EXPECT_EQ(recording.tokens(), FakeGreedy(harness_.model(), prompt, kReplyTokens));
  }
  void Ask(const std::vector<int32_t>& prompt) {
    const auto recording = harness_.Add(prompt, kReplyTokens);
    harness_.RunAll();
    ExpectRight(*recording, prompt);
  }
  // Of this prompt's, when it was answered.
  int64_t CachedTokens(const std::vector<int32_t>& prompt) {
    const auto recording = harness_.Add(prompt, kReplyTokens);
    harness_.RunAll();
    ExpectRight(*recording, prompt);
    return recording->output().usage->cached_donor_tokens + recording->output().usage->cached_local_tokens;
  }
  SharingHarness harness_{{.num_blocks = 20, .stream = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Ways, LeaseReleaseTest, testing::Values(StreamMode::kInPlace, StreamMode::kLsc));

TEST_P(LeaseReleaseTest, ALeaseThatTheStepDoesNotReadIsGivenBackWhileItComputes) {
  harness_.Borrow(kRevoked, 64);
  for (unsigned seed = 1; seed <= 4; ++seed) Ask(harness_.Prompt(seed));
  ASSERT_GT(harness_.load().kv_blocks_leased_in_used, 0);
  const auto other = harness_.Add(harness_.Prompt(77), kReplyTokens);
  bool revoked = false;
  harness_.during_step = [&] {
    if (std::exchange(revoked, true)) return;
    harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Milliseconds(50));
    ASSERT_TRUE(harness_.transport().log().WaitFor("SendRelease 7")) << "before the step has ended";
    harness_.transport().Scribble(kv::LeaseId(kRevoked));  // it is the donor's, who says nothing of it
  };
  harness_.loop().Step();
  ASSERT_TRUE(revoked);
  EXPECT_EQ(harness_.heard().Count("Drain 7"), 0);
  harness_.RunAll();
  EXPECT_TRUE(harness_.PumpUntil([&] { return harness_.load().kv_blocks_leased_in == 0; }));
  EXPECT_TRUE(harness_.transport().log().WaitFor("Close 7"));
  EXPECT_EQ(harness_.broker().log().Count("LOST 7"), 0);
  ExpectRight(*other, harness_.Prompt(77));
  for (unsigned seed = 1; seed <= 4; ++seed) Ask(harness_.Prompt(seed));  // of what lay there nothing is found
}

// Own memory is full of what it runs on, so blocks in use go from lease to lease.
TEST_P(LeaseReleaseTest, BlocksInUseAreSavedBeforeTheirReadersAreReset) {
  harness_.Borrow(kRevoked, 64);
  const std::vector<int32_t> prompt = RandomTokens(5, 200, harness_.model().vocab_size);
  const auto recording = harness_.Add(prompt, kReplyTokens);
  int64_t losses = -1;
  harness_.on_ended = [&](const LiveRequest& request) { losses = request.continuations.front()->losses; };
  while (recording->tokens().empty()) {
    harness_.loop().Turn();
    harness_.LandStores();
  }
  ASSERT_GT(harness_.load().kv_blocks_leased_in_used, 20);
  harness_.Borrow(kStays, 64);
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Milliseconds(50));
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  EXPECT_FALSE(harness_.loop().Step()) << "it would read what is on its way";
  harness_.RunAll();
  EXPECT_TRUE(harness_.transport().log().WaitFor("SendRelease 7"));
  EXPECT_EQ(losses, 0);
  ExpectRight(*recording, prompt);
}

// Else a donor that takes no stores would keep the loop from computing, and the lease from its donor.
TEST_P(LeaseReleaseTest, WhatIsNotSavedInHalfTheTimeIsLost) {
  harness_.Borrow(kRevoked, 64);
  const std::vector<int32_t> prompt = RandomTokens(5, 200, harness_.model().vocab_size);
  const auto recording = harness_.Add(prompt, kReplyTokens);
  while (recording->tokens().empty()) {
    harness_.loop().Turn();
    harness_.LandStores();
  }
  harness_.Borrow(kStays, 64);
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Milliseconds(50));
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  EXPECT_FALSE(harness_.loop().Step());
  EXPECT_EQ(harness_.loop().NextWakeup(), harness_.clock().Now() + absl::Milliseconds(25));
  harness_.clock().Advance(absl::Milliseconds(25));
  harness_.loop().ServeBetweenSteps();
  EXPECT_EQ(harness_.load().running_requests, 0) << "it waits to be computed again";
  harness_.RunAll();
  ExpectRight(*recording, prompt);
}

// As of a donor that ends in order.
TEST_P(LeaseReleaseTest, ADrainWithTimeWaitsForMemoryOfOthers) {
  constexpr int64_t kAtHome = 1;  // place above the watermark
  harness_.Borrow(kRevoked, 64);
  for (unsigned seed = 1; seed <= 4; ++seed) Ask(harness_.Prompt(seed));
  const int64_t away = harness_.load().kv_blocks_leased_in_used;
  ASSERT_GT(away, 0);
  harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse{});  // to what it wanted till now
  harness_.AwaitCoordinator();
  harness_.clock().Advance(absl::Seconds(1));
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Seconds(9));
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  harness_.loop().ServeBetweenSteps();
  EXPECT_TRUE(harness_.broker().log().WaitFor(
      absl::StrCat("Request 2 of ", (away + away / 4 - kAtHome) * harness_.block_bytes(), " for 0")));
  EXPECT_EQ(CachedTokens(harness_.Prompt(1)), 20) << "all whole blocks before the last token are read where they lie";
  harness_.Borrow(kStays, 64);
  EXPECT_TRUE(harness_.PumpUntil([&] {
    harness_.loop().ServeBetweenSteps();
    return harness_.load().kv_blocks_leased_in == 64;
  })) << "the other's";
  EXPECT_GE(harness_.load().kv_blocks_leased_in_used, away) << "all moved";
  EXPECT_TRUE(harness_.transport().log().WaitFor("SendRelease 7"));
  for (unsigned seed = 1; seed <= 4; ++seed) {
    EXPECT_EQ(CachedTokens(harness_.Prompt(seed)), 20) << seed << ": all whole blocks before the last token";
  }
}

// Its donor had said that there was time, and needs the memory after all.
TEST_P(LeaseReleaseTest, ADrainWithTimeIsHastened) {
  harness_.Borrow(kRevoked, 64);
  for (unsigned seed = 1; seed <= 4; ++seed) Ask(harness_.Prompt(seed));
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Seconds(9));
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Seconds(10));  // too late to have more
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  harness_.loop().ServeBetweenSteps();
  EXPECT_EQ(harness_.load().kv_blocks_leased_in, 64);
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Milliseconds(44));
  EXPECT_TRUE(harness_.PumpUntil([&] {
    harness_.loop().ServeBetweenSteps();
    return harness_.load().kv_blocks_leased_in == 0;
  }));
  EXPECT_TRUE(harness_.transport().log().WaitFor("SendRelease 7"));
  EXPECT_EQ(harness_.heard().Count("Drain 7"), 2);
  Ask(harness_.Prompt(1));
}

// While its blocks moved in no hurry prompts were to find them.
TEST_P(LeaseReleaseTest, OfALeaseThatIsEmptiedAndThenHastenedNothingIsAttachedAnyMore) {
  harness_.Borrow(kRevoked, 64);
  for (unsigned seed = 1; seed <= 4; ++seed) Ask(harness_.Prompt(seed));
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Seconds(9));
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  harness_.Borrow(kStays, 64);
  harness_.loop().ServeBetweenSteps();
  ASSERT_GT(harness_.transport().stores().back().lease, kv::LeaseId(kRevoked)) << "its blocks are on their way";
  harness_.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Milliseconds(44));
  harness_.AwaitCoordinator();
  harness_.Pump();
  EXPECT_EQ(harness_.heard().Count("Drain 7"), 2);
  const auto again = harness_.Add(harness_.Prompt(1), kReplyTokens);
  (void)harness_.loop().Step();
  EXPECT_EQ(harness_.load().kv_blocks_leased_in_held, 0);
  harness_.RunAll();
  ExpectRight(*again, harness_.Prompt(1));
}

TEST_P(LeaseReleaseTest, ItWaitsForTwoSecondsAtMostAndNotWhereThereIsNone) {
  for (const bool refused : {false, true}) {
    SharingHarness harness({.num_blocks = 20, .stream = GetParam()});
    harness.Borrow(kRevoked, 64);
    harness.Converse(4, kReplyTokens);
    harness.coordinator().OnRevoked(kv::LeaseId(kRevoked), absl::Seconds(10));
    ASSERT_TRUE(harness.heard().WaitFor("Drain 7"));
    harness.Pump();
    harness.loop().ServeBetweenSteps();
    EXPECT_EQ(harness.load().kv_blocks_leased_in, 64);
    if (refused) {
      harness.coordinator().OnLeaseResponse(coordinator::LeaseResponse{.shortage = "nobody lends"});
    } else {
      EXPECT_LE(harness.loop().NextWakeup(), harness.clock().Now() + absl::Seconds(2));
      harness.clock().Advance(absl::Seconds(2));
      harness.loop().ServeBetweenSteps();
    }
    EXPECT_TRUE(harness.PumpUntil([&] {
      harness.loop().ServeBetweenSteps();
      return harness.load().kv_blocks_leased_in == 0;
    }));
  }
}

// By a loop that drains so many leases at once, nearly all of them in use.
int64_t TimesAskedToDrain(int64_t leases) {
  constexpr int64_t kBlocks = 8;
  SharingHarness harness({.num_blocks = 20});
  for (int64_t id = 1; id <= leases; ++id) harness.Borrow(id, kBlocks);
  const int64_t tokens = leases * kBlocks * harness.model().block_tokens;
  const auto recording = harness.Add(RandomTokens(5, tokens, harness.model().vocab_size), kReplyTokens);
  while (recording->tokens().empty()) {
    harness.loop().Turn();
    harness.LandStores();
  }
  harness.Borrow(leases + 1, leases * kBlocks);
  for (int64_t id = 1; id <= leases; ++id) {
    harness.coordinator().OnRevoked(kv::LeaseId(id), absl::Milliseconds(50));
    EXPECT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", id)));
  }
  const int64_t before = harness.times_asked();
  harness.Pump();
  const int64_t asked = harness.times_asked() - before;
  harness.RunAll();
  EXPECT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == leases * kBlocks; }));
  return asked;
}

// Else the last of them would come too late.
TEST(MassDrainTest, ThatManyLeasesLeaveTogetherMakesNoneDearer) {
  EXPECT_LE(TimesAskedToDrain(32), 5 * TimesAskedToDrain(8));
}

// Where messages take their time: donors do not wait for the last of them.
TEST(MassDrainTest, WhatIsDrainedIsGivenBackAMillisecondLaterAtTheLatest) {
  SharingHarness harness({.num_blocks = 20});
  for (int64_t id = 1; id <= 3; ++id) harness.Borrow(id, 4);
  const auto drain = [&](int64_t id) {
    harness.coordinator().OnRevoked(kv::LeaseId(id), absl::Milliseconds(50));
    EXPECT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", id)));
    harness.Pump();  // and no turn
    return harness.load().kv_blocks_leased_in;
  };
  harness.clock().Advance(absl::Milliseconds(1));
  EXPECT_EQ(drain(1), 8);
  EXPECT_EQ(drain(2), 8) << "not with each message";
  harness.clock().Advance(absl::Milliseconds(1));
  EXPECT_EQ(drain(3), 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
