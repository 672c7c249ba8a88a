// SPDX-License-Identifier: Apache-2.0
// What moves while leases leave, and what comes home while its lease is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_conversations.h"

namespace swiftcache::engine::exec {
namespace {

// Blocks in use go home while there is much room. The loop does not know yet that their lease is fenced.
TEST(SharingMovesTest, NothingOfALostLeaseIsPromoted) {
  for (const bool fenced : {false, true}) {
    SharingHarness harness({.num_blocks = 40, .stream = StreamMode::kInPlace});
    harness.Borrow(kLease, 64);
    Fill(harness);
    ASSERT_NO_FATAL_FAILURE(harness.LendAwayAndTakeBack(3, {0, 40}));
    const int64_t away = harness.load().kv_blocks_leased_in_used;
    const auto recording = Continue(harness);
    if (fenced) harness.transport().Fence(kv::LeaseId(kLease));
    harness.loop().Step();
    EXPECT_GT(harness.transport().loads_under_way(), 0) << "until the next one";
    harness.loop().ServeBetweenSteps();
    EXPECT_EQ(harness.transport().loads_under_way(), 0);
    if (!fenced) {
      ASSERT_LT(harness.load().kv_blocks_leased_in_used, away) << "some are at home";
    }
    harness.RunAll();
    ExpectRight(harness, *recording, fenced ? "fenced" : "not fenced");
  }
}

// While its blocks are read there, they are copied home, soundly; then its donor fences it under the step. Another
// lease ends with the step, and a third moves at its end, so that what was copied is at home before the step's loss is
// looked at.
TEST(SharingMovesTest, WhatComesHomeBehindAStepHidesNoLossOfIt) {
  constexpr int64_t kKept = 8, kLeaving = 9, kEmpty = 10, kUnread = 11, kRoom = 12;
  SharingHarness harness({.num_blocks = 40, .stream = StreamMode::kInPlace});
  harness.transport().is_prompt = [] { return true; };  // copies are done when they are begun
  harness.Borrow(kLease, 24);
  Fill(harness);
  for (const int64_t lease : {kKept, kLeaving}) harness.Borrow(lease, 24);
  harness.Converse(12, kOutputTokens);
  ASSERT_NO_FATAL_FAILURE(harness.LendAwayAndTakeBack(3, {0, 40}));
  for (const int64_t lease : {kEmpty, kUnread, kRoom}) harness.Borrow(lease, 64);
  harness.coordinator().OnRevoked(kv::LeaseId(kEmpty), absl::Seconds(10));  // others move in its slices of time
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 200; }));
  harness.clock().Advance(absl::Milliseconds(7));
  harness.coordinator().OnRevoked(kv::LeaseId(kLeaving), absl::Seconds(10));
  ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", kLeaving)));
  const auto recording = Continue(harness);
  std::vector<int32_t> other = harness.Prompt(5);
  other.resize(9);                          // two blocks and a token
  (void)harness.Add(other, kOutputTokens);  // of what it reads nothing is lost, so that the step goes on
  harness.Pump();
  bool struck = false;
  harness.during_layer = [&](int64_t layer) {
    if (layer < harness.model().num_layers - 1 || std::exchange(struck, true)) return;
    ASSERT_GT(harness.transport().loads_under_way(), 0);
    harness.transport().Fence(kv::LeaseId(kLease));
    harness.coordinator().OnRevoked(kv::LeaseId(kUnread), absl::Milliseconds(10));
    ASSERT_TRUE(harness.transport().log().WaitFor(absl::StrCat("SendRelease ", kUnread)));
    harness.clock().Advance(absl::Milliseconds(100));
  };
  harness.loop().Step();
  ASSERT_TRUE(struck);
  EXPECT_EQ(harness.transport().loads_under_way(), 0) << "the third lease moves";
  harness.RunAll();
  ExpectRight(harness, *recording, "");
}

// Of a conversation of Converse, all that a prompt can find: the last block has the token whose successor is wanted.
bool IsCached(SharingHarness& harness, unsigned seed) {
  const auto recording = harness.Add(harness.Prompt(seed), 1);
  harness.RunAll();
  const Usage usage = *recording->output().usage;
  return usage.cached_local_tokens + usage.cached_donor_tokens == 20;
}

// Own memory is fuller than its watermark, and what a donor has lent is full. What is spilled first takes room that its
// blocks would need.
TEST(SharingMovesTest, LeasesInNoHurryWaitForRoomForTheSpillsToo) {
  constexpr int64_t kNext = 20, kMore = 21, kBlocks = 12, kRoom = kBlocks * 5 / 4;
  constexpr unsigned kConversations = 5;
  for (const int64_t leases : {1, 4}) {
    SharingHarness harness({.num_blocks = 40, .stream = StreamMode::kInPlace});
    harness.donor_of = [](int64_t id) { return id < kNext ? "leaves" : "stays"; };
    harness.Converse(kConversations, kOutputTokens);
    harness.coordinator().OnLeaseResponse(coordinator::LeaseResponse{.lendable_bytes = 1000 * harness.block_bytes()});
    harness.AwaitCoordinator();
    for (int64_t id = 1; id <= leases; ++id) harness.Borrow(id, kBlocks / leases);
    harness.Settle();
    ASSERT_EQ(harness.load().kv_blocks_leased_in_used, kBlocks);
    for (int64_t id = 1; id <= leases; ++id) {
      harness.coordinator().OnRevoked(kv::LeaseId(id), absl::Seconds(10));
      ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", id)));
    }
    harness.Borrow(kNext, kRoom);
    harness.Settle();
    EXPECT_EQ(harness.load().kv_blocks_leased_in, kBlocks + kRoom) << "they wait";
    harness.Borrow(kMore, kBlocks);
    ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == kRoom + kBlocks; }));
    for (unsigned seed = 1; seed <= kConversations; ++seed) EXPECT_TRUE(IsCached(harness, seed)) << leases << seed;
  }
}

// There is room for one of them.
TEST(SharingMovesTest, LeasesOfTwoDonorsThatLeaveAreNotPromisedTheSameRoom) {
  constexpr int64_t kOther = kLease + 1, kNext = kLease + 2, kMore = kLease + 3, kBlocks = 12, kRoom = 20;
  constexpr unsigned kConversations = 7;
  SharingHarness harness({.num_blocks = 40, .stream = StreamMode::kInPlace});
  harness.coordinator().OnLeaseResponse(coordinator::LeaseResponse{.lendable_bytes = 1000 * harness.block_bytes()});
  harness.AwaitCoordinator();
  for (const int64_t lease : {kLease, kOther}) harness.Borrow(lease, kBlocks);
  harness.Converse(kConversations, kOutputTokens);
  ASSERT_EQ(harness.load().kv_blocks_leased_in_used, 2 * kBlocks);
  for (const int64_t lease : {kLease, kOther}) harness.coordinator().OnRevoked(kv::LeaseId(lease), absl::Seconds(10));
  for (const int64_t lease : {kLease, kOther}) ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", lease)));
  harness.Borrow(kNext, kRoom);
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in <= kBlocks + kRoom; }));
  harness.Settle();
  EXPECT_EQ(harness.load().kv_blocks_leased_in, kBlocks + kRoom) << "one waits";
  harness.Borrow(kMore, kRoom);
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 2 * kRoom; }));
  for (unsigned seed = 1; seed <= kConversations; ++seed) EXPECT_TRUE(IsCached(harness, seed)) << seed;
}

TEST(SharingMovesTest, WhatComesBackSinceItsNewLeaseIsLostLeavesForAnother) {
  constexpr int64_t kNext = kLease + 1, kMore = kLease + 2, kBlocks = 12;
  SharingHarness harness({.num_blocks = 40, .stream = StreamMode::kInPlace});
  harness.Converse(5, kOutputTokens);
  harness.Borrow(kLease, kBlocks);
  harness.Settle();
  for (const int64_t lease : {kNext, kMore}) harness.Borrow(lease, 2 * kBlocks);
  harness.Settle();
  const size_t stored = harness.transport().stores().size();
  harness.coordinator().OnRevoked(kv::LeaseId(kLease), absl::Seconds(10));
  ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", kLease)));
  harness.Pump();
  harness.loop().ServeBetweenSteps();
  ASSERT_EQ(harness.transport().stores().size(), stored + kBlocks) << "all are on their way";
  harness.coordinator().OnDonorGone(kv::LeaseId(kNext));
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 2 * kBlocks; }));
  EXPECT_TRUE(IsCached(harness, 1));
}

}  // namespace
}  // namespace swiftcache::engine::exec
