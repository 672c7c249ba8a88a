// SPDX-License-Identifier: Apache-2.0
// What a coordinator gives and takes together, and its end.
#include "engine/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

TEST_F(CoordinatorTest, AtTheEndPeersThatAnswerGetAndGiveEverythingBack) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1);
  Take(9);
  std::thread peers([this] {
    EXPECT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
    coordinator_->OnReleased(kv::LeaseId(1));
    EXPECT_TRUE(loop_.log().WaitFor("Drain 9"));
    coordinator_->Drained(kv::LeaseId(9));
  });
  coordinator_->Stop(absl::InfiniteFuture());
  peers.join();
  EXPECT_EQ(broker_.log().Count("RELEASED 1"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 1"), 1);
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1);
  EXPECT_EQ(transport_.log().Count("Close 9"), 1);
  EXPECT_EQ(broker_.log().Count("FENCED 1"), 0);
}

TEST_F(CoordinatorTest, AtTheEndWhatWasGrantedJustBeforeIsGivenBackToo) {
  Start();
  Settle();  // it knows that nothing is held, until it hears of the lease
  coordinator_->OnLease(Taken(9));
  std::thread end([this] { coordinator_->Stop(absl::InfiniteFuture()); });
  EXPECT_TRUE(transport_.log().WaitFor("Open 9"));
  coordinator_->OnOpened(kv::LeaseId(9), transport_.AddLease(kv::LeaseId(9), 2 * kBlockBytes, kv::Epoch(1)));
  end.join();
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1);
}

TEST_F(CoordinatorTest, AtTheEndPeersThatDoNotAnswerAreFenced) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1);
  coordinator_->Stop(absl::InfinitePast());
  EXPECT_EQ(transport_.log().Count("SendRevoke 1"), 1);
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
}

TEST_F(CoordinatorTest, WhatIsAskedBackBeforeTheEndIsFencedOnlyAtItsDeadlineOrWhenItIsNeeded) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(1), Lend(2);
  coordinator_->AskBackAll(fake_clock_.Now() + absl::Seconds(5));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->OnReleased(kv::LeaseId(2));
  fake_clock_.Advance(absl::Seconds(1));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 1"), 0);
  coordinator_->NeedBack(1, /*blocks_lent=*/2);
  Settle();
  fake_clock_.Advance(absl::Milliseconds(50));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
}

TEST_F(CoordinatorTest, ANeedAtTheEndLeavesTheOthersTheirTime) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(1), Lend(2);
  coordinator_->AskBackAll(fake_clock_.Now() + absl::Seconds(5));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->NeedBack(1, /*blocks_lent=*/4);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1", 2));
  fake_clock_.Advance(absl::Milliseconds(50));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
  EXPECT_EQ(transport_.log().Count("Fence 2"), 0);
  EXPECT_EQ(transport_.log().Count("SendRevoke 2"), 1);
}

TEST_F(CoordinatorTest, ANeedThatWaitsForAdviceIsMetInTimeThoughTheEngineEndsMeanwhile) {
  Start({.revoke_deadline = absl::Milliseconds(50), .broker_patience = absl::Hours(1)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(2, /*blocks_lent=*/4);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  coordinator_->AskBackAll(fake_clock_.Now() + absl::Seconds(5));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->OnScaleUp(broker_.last_question(), absl::UnavailableError("nobody there"));
  Settle();
  fake_clock_.Advance(absl::Milliseconds(50));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
  EXPECT_EQ(transport_.log().Count("Fence 2"), 0);
}

TEST_F(CoordinatorTest, WhoAttachesTakesItsTurnsAndNothingHappensBetweenThem) {
  Coordinator coordinator(
      {.instance_id = kMe, .ttl = absl::Seconds(10), .num_blocks = 1000, .block_bytes = kBlockBytes}, fake_clock_,
      registry_);
  coordinator.Attach(&transport_, &broker_, loop_.push());
  coordinator.OnLease(Given(1));
  EXPECT_EQ(loop_.log().Count("Clear 1"), 0);
  EXPECT_FALSE(coordinator.Turn(absl::ZeroDuration()));
  EXPECT_EQ(loop_.log().Count("Clear 1"), 1);
  coordinator.Cleared(kv::LeaseId(1), true);
  EXPECT_FALSE(coordinator.Turn(absl::ZeroDuration()));
  EXPECT_EQ(broker_.log().Count("GRANTED 1"), 1);
  EXPECT_EQ(coordinator.donor().Given().size(), 1);
  EXPECT_EQ(coordinator.NextDeadline(), fake_clock_.Now() + absl::Seconds(10));
  fake_clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(transport_.log().Count("Fence 1"), 0);
  EXPECT_FALSE(coordinator.Turn(absl::InfiniteDuration()));  // it is due: nothing is waited for
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 1"), 1);
}

TEST_F(CoordinatorTest, GivenTellsWhatIsGrantedAndNotWhatIsTaken) {
  Start();
  Lend(1);
  coordinator_->OnLease(Given(2));
  Take(9);
  Settle();
  std::vector<int64_t> given;
  for (const lease::Lease& lease : coordinator_->Given()) given.push_back(lease.id.value());
  EXPECT_THAT(given, testing::ElementsAre(1));
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
