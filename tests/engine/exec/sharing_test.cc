// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/engine/exec/sharing_conversations.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;

// Conversations that own memory has room for two of, and a lease for all.
struct Way {
  const char* name;
  StreamMode stream;
  bool mapped = true;
};

class SharingTest : public testing::TestWithParam<Way> {
 protected:
  SharingOptions Options() const {
    SharingOptions options{.num_blocks = 20, .stream = GetParam().stream, .mapped = GetParam().mapped};
    if (!options.mapped) options.model.num_layers = 8;  // so that half of own memory is slots for four times as much
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(AllWays, SharingTest,
                         testing::Values(Way{"InPlace", StreamMode::kInPlace}, Way{"Streamed", StreamMode::kLsc},
                                         Way{"Unmapped", StreamMode::kLsc, /*mapped=*/false}),
                         [](const auto& info) { return info.param.name; });

TEST_P(SharingTest, ColdBlocksGoToTheLeaseAndAreReadFromThere) {
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  Fill(harness);
  const auto recording = Continue(harness);
  harness.RunAll();
  ExpectRight(harness, *recording, "");
  EXPECT_GT(recording->output().usage->cached_donor_tokens, 0);
}

// At each step of the conversation, when the batch is made and nothing is read: the worst moment to lose the memory.
TEST_P(SharingTest, WhateverTheStepNothingOfALostLeaseReachesAToken) {
  for (int64_t fatal = 0; fatal < kOutputTokens; ++fatal) {
    SharingHarness harness(Options());
    harness.Borrow(kLease, 64);
    Fill(harness);
    const auto recording = Continue(harness);
    int64_t step = 0;
    harness.during_step = [&] {
      if (step++ == fatal) harness.transport().Fence(kv::LeaseId(kLease));
    };
    harness.RunAll();
    ExpectRight(harness, *recording, absl::StrCat("fenced in step ", fatal));
    EXPECT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
    EXPECT_TRUE(harness.transport().log().WaitFor("Abandon 7"));
    EXPECT_TRUE(harness.transport().log().WaitFor("Close 7"));
  }
}

// Another conversation, all of whose blocks are at home, is in the same steps.
TEST_P(SharingTest, WhoTouchesNoLostLeaseKeepsWhatTheStepComputed) {
  SharingOptions options = Options();
  const int64_t slots = GetParam().stream != StreamMode::kLsc ? 0 : GetParam().mapped ? 40 : 16;  // blocks of them
  options.num_blocks = 40 + slots;
  SharingHarness harness(options);
  harness.Borrow(kLease, 64);
  Fill(harness);
  const auto reader = Continue(harness);
  const auto other = harness.Add(harness.Prompt(9), kOutputTokens);
  while (other->tokens().size() < 3) ASSERT_TRUE(harness.loop().Step());
  ASSERT_FALSE(reader->done());
  const size_t before = other->tokens().size(), read = reader->tokens().size();
  harness.during_step = [&] { harness.transport().Fence(kv::LeaseId(kLease)); };
  ASSERT_TRUE(harness.loop().Step());
  harness.during_step = nullptr;
  EXPECT_EQ(other->tokens().size(), before + 1);
  EXPECT_EQ(reader->tokens().size(), read) << "lost";
  harness.RunAll();
  ExpectRight(harness, *reader, "");
  EXPECT_EQ(other->tokens(), FakeGreedy(harness.model(), harness.Prompt(9), kOutputTokens));
}

TEST_P(SharingTest, AStepOfNoneButLostSequencesEndsEarly) {
  SharingOptions options = Options();
  // The first layer of a step that streams may have come before.
  options.model.num_layers = std::max<int64_t>(options.model.num_layers, 3);
  SharingHarness harness(options);
  harness.Borrow(kLease, 64);
  Fill(harness);
  const auto recording = Continue(harness);
  ASSERT_TRUE(harness.loop().Step());
  harness.during_step = [&] { harness.transport().Fence(kv::LeaseId(kLease)); };
  const int64_t progress = harness.loop().progress();
  ASSERT_TRUE(harness.loop().Step());
  harness.during_step = nullptr;
  EXPECT_LT(harness.loop().progress() - progress, 1 + harness.model().num_layers);
  harness.RunAll();
  ExpectRight(harness, *recording, "");
}

TEST(SharingStreamTest, WhateverTheLayerNothingOfALostLeaseReachesAToken) {
  for (int64_t fatal = 0; fatal < 8; ++fatal) {
    SharingHarness harness(
        {.model = {.num_layers = 4, .block_tokens = 4}, .num_blocks = 24, .stream = StreamMode::kLsc});
    harness.Borrow(kLease, 16);
    harness.Converse(4, kOutputTokens);
    const auto recording = harness.Add(harness.Prompt(1), kOutputTokens);
    int64_t loads = 0;
    harness.transport().on_await = [&] {
      if (loads++ == fatal) harness.transport().Fence(kv::LeaseId(kLease));
    };
    harness.RunAll();
    EXPECT_GT(loads, 0) << "something was streamed";
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), harness.Prompt(1), kOutputTokens))
        << "fenced in load " << fatal;
  }
}

TEST_P(SharingTest, ARevokedLeaseIsDrainedAndGivenBackInTheMidstOfAConversation) {
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  Fill(harness);
  const auto recording = Continue(harness);
  int64_t step = 0;
  harness.during_step = [&] {
    if (step++ == 2) harness.coordinator().OnRevoked(kv::LeaseId(kLease), absl::Milliseconds(50));
  };
  harness.RunAll();
  ExpectRight(harness, *recording, "");
  EXPECT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
  EXPECT_TRUE(harness.transport().log().WaitFor("SendRelease 7"));
  EXPECT_EQ(harness.transport().log().Count("Abandon 7"), 0);
}

// The donor fences it before what it copies to the other lease is on its way; that one is sound, and so is the store.
TEST_P(SharingTest, NothingOfALostLeaseIsFoundInTheLeaseItWasStoredTo) {
  if (!GetParam().mapped) GTEST_SKIP() << "no block moves from lease to lease where neither is mapped";
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  Fill(harness);
  harness.Borrow(kLease + 1, 64);
  const size_t stored = harness.transport().stores().size();
  harness.coordinator().OnRevoked(kv::LeaseId(kLease), absl::Milliseconds(50));
  ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", kLease)));
  harness.Pump();
  ASSERT_GT(harness.transport().stores().size(), stored) << "idle blocks go to the other lease";
  harness.transport().Fence(kv::LeaseId(kLease));
  harness.LandStores();
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 64; }));
  const auto recording = Continue(harness);
  harness.RunAll();
  ExpectRight(harness, *recording, "");
  EXPECT_EQ(recording->output().usage->cached_donor_tokens, 0);
}

// The donor fenced it before its word reached the loop; the first conversation reads it.
TEST_P(SharingTest, NothingOfALostLeaseIsSavedByItsDrain) {
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  Fill(harness);
  const auto recording = Continue(harness);
  ASSERT_TRUE(harness.loop().Step());
  harness.transport().Fence(kv::LeaseId(kLease));
  harness.coordinator().OnRevoked(kv::LeaseId(kLease), absl::Milliseconds(50));
  ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", kLease)));
  harness.Pump();
  harness.loop().ServeBetweenSteps();
  EXPECT_EQ(harness.load().kv_blocks_leased_in, 0);
  harness.RunAll();
  ExpectRight(harness, *recording, "");
}

TEST_P(SharingTest, AStoreThatIsRefusedLeavesTheBlockWhereItWas) {
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  harness.store_answer = absl::FailedPreconditionError("fenced");
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const auto recording = harness.Add(harness.Prompt(seed), kOutputTokens);
    harness.RunAll();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), harness.Prompt(seed), kOutputTokens)) << seed;
  }
  EXPECT_FALSE(harness.transport().stores().empty());
  EXPECT_TRUE(harness.transport().log().WaitFor("Abandon 7")) << "nothing more goes there";
  EXPECT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
}

// All spills wait behind what it was sent, and behind them whoever waits for room.
TEST_P(SharingTest, ADonorThatStandsStillIsLeftAfterASecond) {
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  std::shared_ptr<Recording> recording;
  for (unsigned seed = 1; harness.transport().stores().size() < 2; ++seed) {
    recording = harness.Add(harness.Prompt(seed), kOutputTokens);
    while (!recording->done() && harness.transport().stores().size() < 2) {
      harness.loop().Turn();
    }
  }
  harness.clock().Advance(absl::Milliseconds(900));
  const auto first = harness.transport().stores().front();
  harness.transport().Land(first);
  harness.coordinator().OnStored(first.ticket, absl::OkStatus());
  harness.Pump();
  harness.clock().Advance(absl::Milliseconds(900));
  harness.loop().ServeBetweenSteps();
  EXPECT_GT(harness.loop().NextWakeup(), harness.clock().Now()) << "it is slow, not still";
  harness.clock().Advance(absl::Milliseconds(100));
  EXPECT_LE(harness.loop().NextWakeup(), harness.clock().Now());
  harness.loop().ServeBetweenSteps();
  ASSERT_TRUE(harness.heard().WaitFor("Drain 7"));
  harness.Pump();
  harness.clock().Advance(absl::Seconds(1));             // the drain's time is over
  harness.coordinator().OnRenewed(kv::LeaseId(kLease));  // too late, but somebody looks at the clock
  ASSERT_TRUE(harness.transport().log().WaitFor("Abandon 7"));
  harness.store_answer = absl::UnavailableError("abandoned");  // what the transport says then of all stores
  EXPECT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
  harness.RunAll();
  EXPECT_TRUE(recording->Wait().ok());
}

// Also where its lease leaves already, with much time: it ended in order, say, and stands still now.
TEST_P(SharingTest, ADonorThatStandsStillIsLeftBeforeItsDrainIsOver) {
  SharingHarness harness(Options());
  harness.Borrow(kLease, 64);
  for (unsigned seed = 1; harness.transport().stores().empty(); ++seed) {
    const auto recording = harness.Add(harness.Prompt(seed), kOutputTokens);
    while (!recording->done() && harness.transport().stores().empty()) harness.loop().Turn();
  }
  harness.coordinator().OnRevoked(kv::LeaseId(kLease), absl::Seconds(9));
  ASSERT_TRUE(harness.heard().WaitFor("Drain 7"));
  harness.Pump();
  harness.clock().Advance(absl::Seconds(1));
  harness.loop().ServeBetweenSteps();
  harness.AwaitCoordinator();
  EXPECT_EQ(harness.heard().Count("Drain 7"), 2);
  harness.Pump();
  harness.clock().Advance(EngineOptions().revoke_deadline);
  harness.AwaitCoordinator();
  ASSERT_TRUE(harness.transport().log().WaitFor("Abandon 7"));
  harness.store_answer = absl::UnavailableError("abandoned");
  EXPECT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
  harness.RunAll();
}

TEST_P(SharingTest, MemoryThatRunsShortIsAskedFor) {
  SharingHarness harness(Options());
  harness.Converse(4, kOutputTokens);
  bool asked = false;
  ASSERT_TRUE(harness.PumpUntil([&] {
    for (const std::string& call : harness.broker().log().calls()) asked = asked || call.starts_with("Request 1 of ");
    return asked;
  }));
}

TEST_P(SharingTest, WhoDoesNotBorrowAsksForNothing) {
  SharingOptions options = Options();
  options.borrow = false;
  SharingHarness harness(options);
  harness.Converse(4, kOutputTokens);
  harness.Offer(9, {16, 4});  // is heard after whatever was asked before
  for (const std::string& call : harness.broker().log().calls()) EXPECT_FALSE(call.starts_with("Request ")) << call;
}

// Else it would be written to memory that has another use meanwhile.
TEST(SharingStreamTest, AStepThatFailsLeavesNoLoadUnderWay) {
  SharingHarness harness({.num_blocks = 20, .stream = StreamMode::kLsc});
  harness.Borrow(kLease, 64);
  harness.Converse(4, kOutputTokens);
  const auto recording = harness.Add(harness.Prompt(1), kOutputTokens);
  bool streamed = false;
  harness.during_step = [&] { streamed = harness.transport().loads_under_way() > 0; };
  harness.step_status = absl::InternalError("the device is gone");
  harness.loop().Step();
  EXPECT_TRUE(streamed);
  EXPECT_EQ(recording->Wait().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(harness.transport().loads_under_way(), 0);
}

// A store under way keeps a lease beyond its drain.
TEST(SharingStreamTest, OwnMemoryIsWholeAgainWhenTheLastLeaseEndsWithAStore) {
  SharingHarness harness({.num_blocks = 20, .stream = StreamMode::kLsc});
  harness.Borrow(kLease, 64);
  (void)harness.Add(harness.Prompt(1), kOutputTokens);
  while (harness.transport().stores().empty()) ASSERT_TRUE(harness.loop().Step());
  harness.coordinator().OnRevoked(kv::LeaseId(kLease), absl::Milliseconds(50));
  ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", kLease)));
  harness.Pump();
  ASSERT_EQ(harness.load().kv_blocks_leased_in, 64);
  harness.LandStores();
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
  const EngineLoad load = harness.load();
  EXPECT_EQ(load.kv_blocks_free + load.kv_blocks_used + load.kv_blocks_cached, load.kv_blocks_total);
  const std::vector<int32_t> long_prompt = RandomTokens(9, 60, 64);  // 15 blocks, of which streaming had 10
  const auto recording = harness.Add(long_prompt, kOutputTokens);
  harness.RunAll();
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), long_prompt, kOutputTokens));
}

// --- as a donor

TEST_P(SharingTest, AnExtentIsClearedOfItsBlocksAndOfTheirBytesBeforeItIsLent) {
  SharingHarness harness(Options());
  (void)harness.Add(harness.Prompt(1), kOutputTokens);
  harness.RunAll();
  harness.OfferAway(3, {0, 10});  // where the first blocks of an empty arena lie
  ASSERT_TRUE(harness.transport().log().WaitFor("Grant 3"));
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 10);
  for (int64_t i = 0; i < 10 * harness.block_bytes(); ++i) {
    ASSERT_EQ(harness.own_memory()[i], std::byte{0}) << i << ": another tenant's byte";
  }
  const auto recording = Continue(harness);
  harness.RunAll();
  ExpectRight(harness, *recording, "");
}

TEST_P(SharingTest, ARunningSequencesBlocksMoveAsideForALoan) {
  SharingHarness harness(Options());
  (void)harness.Add(harness.Prompt(2), kOutputTokens);
  harness.RunAll();  // its blocks, idle now, are the first of the arena
  const auto recording = Continue(harness);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness.loop().Step());
  harness.OfferAway(3, {8, 12});
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 12);
  EXPECT_GT(harness.load().evicted_blocks_total, 0) << "the idle ones made way";
  harness.RunAll();
  ExpectRight(harness, *recording, "");
}

TEST_P(SharingTest, ARequestThatNeedsWhatIsLentGetsItBack) {
  SharingHarness harness(Options());
  harness.LendAway(3, {8, 12});
  const std::vector<int32_t> prompt = RandomTokens(9, 48, 64);  // twelve blocks, where eight are left
  const auto recording = harness.Add(prompt, kOutputTokens);
  EXPECT_FALSE(harness.loop().Step()) << "the prefill waits for all of its room";
  ASSERT_TRUE(harness.transport().log().WaitFor("SendRevoke 3"));
  EXPECT_FALSE(recording->done());
  harness.clock().Advance(absl::Milliseconds(3));
  harness.coordinator().OnReleased(kv::LeaseId(3));
  ASSERT_TRUE(harness.heard().WaitFor("TakeBack 3"));
  harness.clock().Advance(absl::Seconds(1));  // of a step, say
  harness.RunAll();
  EXPECT_EQ(harness.load().kv_blocks_leased_out, 0);
  EXPECT_THAT(harness.scrape(), HasSubstr("swiftcache_reclaim_wait_seconds_sum 0.003"));
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, kOutputTokens));
}

// Of two leases one comes back, and with it the prompt goes on.
TEST_P(SharingTest, ANeedThatIsMetByPartOfWhatWasLentIsMeasuredToo) {
  SharingHarness harness(Options());
  harness.LendAway(3, {8, 6});
  harness.LendAway(4, {14, 6});
  const std::vector<int32_t> prompt = RandomTokens(9, 48, 64);  // twelve blocks, where eight are left
  const auto recording = harness.Add(prompt, kOutputTokens);
  EXPECT_FALSE(harness.loop().Step());
  ASSERT_TRUE(harness.transport().log().WaitFor("SendRevoke 3"));
  harness.clock().Advance(absl::Milliseconds(3));
  harness.coordinator().OnReleased(kv::LeaseId(3));
  ASSERT_TRUE(harness.heard().WaitFor("TakeBack 3"));
  harness.clock().Advance(absl::Milliseconds(7));
  harness.RunAll();
  EXPECT_THAT(harness.scrape(), HasSubstr("swiftcache_reclaim_wait_seconds_sum 0.003"));
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, kOutputTokens));
}

TEST_P(SharingTest, ABorrowerThatTakesItsTimeDoesNotHoldUpWhatThereIsRoomFor) {
  SharingHarness harness(Options());
  harness.LendAway(3, {8, 12});
  const std::vector<int32_t> prompt = RandomTokens(9, 48, 64);
  const auto recording = harness.Add(prompt, kOutputTokens);
  EXPECT_FALSE(harness.loop().Step());
  EXPECT_EQ(harness.loop().NextWakeup(), harness.clock().Now() + absl::Milliseconds(5)) << "it looks again by then";
  harness.clock().Advance(absl::Milliseconds(4));
  EXPECT_FALSE(harness.loop().Step());
  harness.clock().Advance(absl::Milliseconds(1));
  EXPECT_TRUE(harness.loop().Step());
  harness.coordinator().OnReleased(kv::LeaseId(3));
  harness.RunAll();
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, kOutputTokens));
}

TEST_P(SharingTest, DecodesDoNotWaitForTheMemoryThatAPrefillNeeds) {
  SharingHarness harness(Options());
  harness.LendAway(3, {8, 12});
  std::mt19937 rng(9);
  const auto decoding = harness.Add(RandomTokens(rng, 6, 64), kOutputTokens);
  ASSERT_TRUE(harness.loop().Step());
  const size_t tokens = decoding->tokens().size();
  const auto recording = harness.Add(RandomTokens(rng, 40, 64), kOutputTokens);
  EXPECT_TRUE(harness.loop().Step());
  ASSERT_TRUE(harness.transport().log().WaitFor("SendRevoke 3"));
  EXPECT_EQ(decoding->tokens().size(), tokens + 1);
  EXPECT_FALSE(recording->done());
  harness.coordinator().OnReleased(kv::LeaseId(3));
  harness.RunAll();
  EXPECT_TRUE(recording->done());
}

}  // namespace
}  // namespace swiftcache::engine::exec
