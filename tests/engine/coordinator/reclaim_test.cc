// SPDX-License-Identifier: Apache-2.0
// How long it takes until memory that was asked back is there.
#include <gtest/gtest.h>

#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

using ReclaimTest = CoordinatorTest;

// A fence waits for the piece that is being copied.
TEST_F(ReclaimTest, AFenceThatTakesLongIsPartOfTheReclaim) {
  transport_.on_fence = [this](kv::LeaseId) { fake_clock_.Advance(absl::Milliseconds(80)); };
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(7);
  coordinator_->OnLease(Given(7, lease::State::kRevoking));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7"));
  fake_clock_.Advance(absl::Milliseconds(44));
  Settle();
  EXPECT_EQ(Metric("swiftcache_lease_late_total"), 1);
  EXPECT_EQ(Metric("swiftcache_reclaim_seconds_bucket{le=\"0.1\"}"), 0);
  EXPECT_EQ(Metric("swiftcache_reclaim_seconds_count"), 1);
  EXPECT_EQ(coordinator_->reclaims().last, absl::Milliseconds(124));
}

TEST_F(ReclaimTest, ASecondLeaseOfANeedWaitsForTheFenceOfTheFirst) {
  transport_.on_fence = [this](kv::LeaseId) { fake_clock_.Advance(absl::Milliseconds(80)); };
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(7);
  Lend(8);
  coordinator_->NeedBack(4, 4);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 8"));
  fake_clock_.Advance(absl::Milliseconds(44));
  Settle();
  EXPECT_EQ(coordinator_->reclaims().count, 2);
  EXPECT_EQ(coordinator_->reclaims().last, absl::Milliseconds(44 + 80 + 80));
}

TEST_F(ReclaimTest, ALeaseThatNobodyOpenedIsReclaimedByItsFenceAlone) {
  transport_.on_fence = [this](kv::LeaseId) { fake_clock_.Advance(absl::Milliseconds(80)); };
  Start();
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(broker_.log().WaitFor("GRANTED 7"));
  coordinator_->NeedBack(2, 2);
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
  Settle();
  EXPECT_EQ(coordinator_->reclaims().count, 1);
  EXPECT_EQ(coordinator_->reclaims().last, absl::Milliseconds(80));
}

TEST_F(ReclaimTest, WhatAnEngineThatEndsTakesBackIsNoReclaim) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(7);
  Settle();
  coordinator_->AskBackAll(clock_.Now() + absl::Seconds(30));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7"));
  fake_clock_.Advance(absl::Seconds(20));
  coordinator_->OnReleased(kv::LeaseId(7));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  Settle();
  EXPECT_EQ(coordinator_->reclaims().count, 0);
  EXPECT_EQ(Metric("swiftcache_reclaim_seconds_count"), 0);
  EXPECT_EQ(Metric("swiftcache_lease_late_total"), 0);
}

TEST_F(ReclaimTest, ALeaseThatIsAskedBackAgainIsRevokedOnce) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(7);
  coordinator_->AskBackAll(clock_.Now() + absl::Seconds(30));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7"));
  coordinator_->NeedBack(2, 2);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7", 2)) << "it has less time";
  Settle();
  EXPECT_EQ(Metric("swiftcache_lease_revoked_total"), 1);
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
