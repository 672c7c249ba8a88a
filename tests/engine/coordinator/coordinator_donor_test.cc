// SPDX-License-Identifier: Apache-2.0
// What a coordinator does for leases that its engine gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

using ::testing::HasSubstr;

const RealClock kRealClock;
class CoordinatorInRealTimeTest : public CoordinatorTest {
 protected:
  CoordinatorInRealTimeTest() : CoordinatorTest(&kRealClock) {}
};

// The second and the third message lie in one batch; what the second sets going takes until after the deadline.
TEST_F(CoordinatorTest, ADeadlineIsLookedAtBetweenAnyTwoMessages) {
  Start({.revoke_deadline = absl::Milliseconds(50), .broker_patience = absl::Hours(1)});
  for (const int64_t id : {1, 2, 3}) {
    coordinator_->OnLease(Given(id));
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("Clear ", id)));
  }
  coordinator_->Cleared(kv::LeaseId(1), true);
  ASSERT_TRUE(broker_.log().WaitFor("GRANTED 1"));
  coordinator_->OnBorrowerOpened(kv::LeaseId(1));
  lease::Lease revoked = Given(1, lease::State::kRevoking);
  coordinator_->OnLease(revoked);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  transport_.on_grant = [this](const transport::GrantSpec& spec) {
    if (spec.lease == kv::LeaseId(2)) {
      coordinator_->Cleared(kv::LeaseId(3), true);
      coordinator_->OnReleased(kv::LeaseId(1));
    } else {
      fake_clock_.Advance(absl::Milliseconds(48));
    }
    return absl::OkStatus();
  };
  coordinator_->Cleared(kv::LeaseId(2), true);
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 1"));
  Settle();
  EXPECT_EQ(Metric("swiftcache_lease_fenced_total"), 1) << "not released: the deadline was first";
  EXPECT_EQ(Metric("swiftcache_lease_late_total"), 0) << "there is some time left";
}

TEST_F(CoordinatorTest, MemoryThatComesBackLateIsCounted) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(1);
  coordinator_->OnLease(Given(1, lease::State::kRevoking));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  fake_clock_.Advance(absl::Milliseconds(51));
  Settle();
  EXPECT_EQ(Metric("swiftcache_lease_late_total"), 1);
}

TEST_F(CoordinatorTest, AnOfferIsClearedGrantedAndReportedWithItsEpoch) {
  Start();
  transport_.on_grant = [](const transport::GrantSpec& spec) {
    EXPECT_EQ(spec.offset_bytes, 70 * kBlockBytes);
    EXPECT_EQ(spec.bytes, 2 * kBlockBytes);
    EXPECT_EQ(spec.borrower_instance, "borrower of 7");
    EXPECT_EQ(spec.capability, "secret");
    return absl::OkStatus();
  };
  coordinator_->OnLease(Given(7));
  ASSERT_TRUE(loop_.log().WaitFor("Clear 7"));
  EXPECT_EQ(transport_.log().Count("Grant 7"), 0) << "not before its own KV is out of it";
  coordinator_->Cleared(kv::LeaseId(7), true);
  ASSERT_TRUE(broker_.log().WaitFor("GRANTED 7"));
  EXPECT_EQ(broker_.news().back().lease.epoch, kv::Epoch(1));
  EXPECT_EQ(Metric("swiftcache_lease_granted_total"), 1);
}

TEST_F(CoordinatorTest, WhatIsNeverLentIsDeclinedWithoutTheLoop) {
  Start({.never_lent_blocks = 75});
  coordinator_->OnLease(Given(7));  // from block 70 on
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  EXPECT_THAT(broker_.news().back().reason, HasSubstr("first 75 blocks, which are never lent"));
  coordinator_->OnLease(Given(8));
  ASSERT_TRUE(loop_.log().WaitFor("Clear 8"));
  EXPECT_EQ(loop_.log().Count("Clear 7"), 0);
}

TEST_F(CoordinatorTest, AnExtentThatCannotBeClearedIsDeclined) {
  Start();
  coordinator_->OnLease(Given(7));
  ASSERT_TRUE(loop_.log().WaitFor("Clear 7"));
  coordinator_->Cleared(kv::LeaseId(7), false);
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  Settle();
  EXPECT_EQ(transport_.log().Count("Grant 7"), 0);
  EXPECT_TRUE(coordinator_->Given().empty());
}

TEST_F(CoordinatorTest, AGrantThatFailsGivesTheMemoryBackToTheLoop) {
  Start();
  transport_.on_grant = [](const transport::GrantSpec&) { return absl::ResourceExhaustedError("no words left"); };
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  EXPECT_THAT(broker_.news().back().reason, HasSubstr("no words left"));
}

TEST_F(CoordinatorTest, OffersToOtherInstancesAreNotOurs) {
  Start();
  lease::Lease other = Given(7);
  other.donor_instance = "an earlier me";
  coordinator_->OnLease(other);
  Settle();
  EXPECT_EQ(loop_.log().Count("Clear 7"), 0);
}

TEST_F(CoordinatorTest, ARenewalIsAnsweredAndKeepsTheLease) {
  Start({.ttl = absl::Seconds(10)});
  Lend(7);
  for (int i = 1; i <= 4; ++i) {
    fake_clock_.Advance(absl::Seconds(6));
    coordinator_->OnRenewal(kv::LeaseId(7), 0);
    ASSERT_TRUE(transport_.log().WaitFor("SendRenewed 7", i));
  }
  EXPECT_EQ(transport_.log().Count("Fence 7"), 0);
}

TEST_F(CoordinatorTest, ABorrowerThatStopsRenewingIsFenced) {
  Start({.ttl = absl::Seconds(10)});
  Lend(7);
  Settle();
  fake_clock_.Advance(absl::Seconds(10));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 7"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 1);
  EXPECT_EQ(broker_.log().Count("FENCED 7"), 1);
  EXPECT_EQ(Metric("swiftcache_lease_fenced_total"), 1);
}

TEST_F(CoordinatorTest, ABrokersShorterTtlHoldsForNewLeases) {
  Start({.ttl = absl::Seconds(10)});
  Lend(7);
  coordinator_->OnTerms({.ttl = absl::Seconds(2), .scale_down_window = absl::Seconds(3)});
  Settle();
  EXPECT_EQ(loop_.log().Count("Terms 3s"), 1) << "the loop's window is the broker's";
  fake_clock_.Advance(absl::Seconds(9));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 7"), 0) << "the borrower may not have heard of it yet";
  coordinator_->OnRenewal(kv::LeaseId(7), 0);
  Lend(8);
  Settle();
  fake_clock_.Advance(absl::Seconds(2));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 8"), 1);
  EXPECT_EQ(transport_.log().Count("Fence 7"), 0);
  fake_clock_.Advance(absl::Seconds(8));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 7"), 1);
}

TEST_F(CoordinatorTest, WhereThereIsNoChoiceTheBorrowerHearsOfANeedBeforeTheBroker) {
  int64_t revoked = 0;
  broker_.on_scale_up = [&] { revoked = transport_.log().Count("SendRevoke 7"); };
  Start();
  Lend(7);
  coordinator_->NeedBack(1, 2);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 1"));
  EXPECT_EQ(revoked, 1);
}

TEST_F(CoordinatorTest, WhatComesBackInTimeIsReleasedAndNotFenced) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Lend(7);
  coordinator_->OnLease(Given(7, lease::State::kRevoking));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7"));
  fake_clock_.Advance(absl::Milliseconds(20));
  coordinator_->OnReleased(kv::LeaseId(7));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  EXPECT_EQ(broker_.log().Count("FENCED 7"), 0);
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 1);
  EXPECT_EQ(coordinator_->reclaims().count, 1);
  EXPECT_EQ(coordinator_->reclaims().last, absl::Milliseconds(20));
  fake_clock_.Advance(absl::Seconds(1));
  Settle();
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 1) << "once";
}

// The test takes the turns of the coordinator's thread.
TEST_F(CoordinatorTest, TheDeadlineOfARevocationFencesWithoutAMessage) {
  const absl::Duration kDeadline = absl::Milliseconds(80), kFencedAfter = kDeadline * 7 / 8;
  coordinator_ = std::make_unique<Coordinator>(
      Coordinator::Options{
          .instance_id = kMe, .revoke_deadline = kDeadline, .num_blocks = 1000, .block_bytes = kBlockBytes},
      clock_, registry_);
  coordinator_->Attach(&transport_, &broker_, loop_.push());
  const auto turn = [this] { coordinator_->Turn(absl::ZeroDuration()); };
  coordinator_->OnLease(Given(1)), turn();
  coordinator_->Cleared(kv::LeaseId(1), true), turn();
  coordinator_->OnBorrowerOpened(kv::LeaseId(1)), turn();
  coordinator_->OnLease(Given(1, lease::State::kRevoking)), turn();
  EXPECT_EQ(coordinator_->NextDeadline(), clock_.Now() + kFencedAfter) << "then the thread wakes";
  fake_clock_.Advance(kFencedAfter - absl::Nanoseconds(1));
  turn();
  EXPECT_EQ(transport_.log().Count("Fence 1"), 0);
  fake_clock_.Advance(absl::Nanoseconds(1));
  turn();
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 1"), 1);
  EXPECT_EQ(broker_.log().Count("FENCED 1"), 1);
  EXPECT_EQ(coordinator_->reclaims().last, kFencedAfter);
  EXPECT_EQ(Metric("swiftcache_lease_late_total"), 0);
}

// The thread wakes for it by itself: not early, and no later than a busy machine makes it, which is mostly little.
TEST_F(CoordinatorInRealTimeTest, TheDeadlineOfARevocationFencesAlone) {
  constexpr absl::Duration kDeadline = absl::Milliseconds(80);
  constexpr int64_t kLeases = 9;
  int64_t much_later = 0;
  Start({.revoke_deadline = kDeadline});
  for (int64_t id = 1; id <= kLeases; ++id) {
    Lend(id);
    const absl::Time begin = clock_.Now();
    coordinator_->OnLease(Given(id, lease::State::kRevoking));
    ASSERT_TRUE(transport_.log().WaitFor(absl::StrCat("Fence ", id))) << "nobody said anything more";
    EXPECT_GE(clock_.Now() - begin, kDeadline * 7 / 8) << "so that it is back by the deadline";
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("FENCED ", id)));
    Settle();
    EXPECT_EQ(coordinator_->reclaims().count, id);
    EXPECT_LE(coordinator_->reclaims().last, absl::Seconds(10));
    much_later += coordinator_->reclaims().last > kDeadline * 3 / 2;
  }
  EXPECT_LE(much_later, kLeases / 2);
}

TEST_F(CoordinatorTest, ALeaseThatTheBrokerDoesNotKnowLivesOnAndIsToldAgain) {
  Start();
  Lend(7);
  coordinator_->OnLeases({});
  ASSERT_TRUE(broker_.log().WaitFor("GRANTED 7", 2));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 7") + transport_.log().Count("Fence 7"), 0);
}

TEST_F(CoordinatorTest, AnAcceptanceThatIsRefusedIsTakenBack) {
  Start();
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(broker_.log().WaitFor("GRANTED 7"));
  coordinator_->OnReportRefused(broker_.news().back(), absl::FailedPreconditionError("it was revoked meanwhile"));
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
}

TEST_F(CoordinatorTest, ANeedRevokesWhatTheBrokerAdvises) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 1"), 0) << "it waits for the advice";
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(3)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 3"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 1") + transport_.log().Count("SendRevoke 2"), 0) << "that is enough";
}

TEST_F(CoordinatorTest, WhereTheAdviceIsLateANeedGoesByTheWeightsThatCameBefore) {
  Start();
  Lend(1), Lend(2), Lend(3);
  coordinator_->OnWeights({{"borrower of 1", 1000}, {"borrower of 2", 1}, {"borrower of 3", 1000}});
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  fake_clock_.Advance(absl::Milliseconds(3));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2"), 1);
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(3)});
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 1") + transport_.log().Count("SendRevoke 3"), 0) << "too late";
}

TEST_F(CoordinatorTest, AnAnswerToAnEarlierNeedIsNoneToALaterOne) {
  Start();
  Lend(1), Lend(2), Lend(3), Lend(4);
  coordinator_->NeedBack(2, /*blocks_lent=*/8);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  const int64_t earlier = broker_.last_question();
  fake_clock_.Advance(absl::Milliseconds(3));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1")) << "nobody has answered";
  coordinator_->NeedBack(4, /*blocks_lent=*/8);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 4"));
  coordinator_->OnScaleUp(earlier, std::vector<kv::LeaseId>{kv::LeaseId(2), kv::LeaseId(3)});
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2") + transport_.log().Count("SendRevoke 3"), 0);
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(1), kv::LeaseId(4)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 4"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2") + transport_.log().Count("SendRevoke 3"), 0);
}

TEST_F(CoordinatorTest, MoreThanIsNeededIsRevokedIfTheBrokerAdvisesIt) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(3), kv::LeaseId(2)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 3"));
  EXPECT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
}

TEST_F(CoordinatorTest, ANeedForAllThatIsLentDoesNotWaitForTheAdvice) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(4, /*blocks_lent=*/0);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->NeedBack(9, /*blocks_lent=*/0);
  Settle();
  EXPECT_EQ(broker_.log().Count("ScaleUp 4"), 1) << "it may know of more that is needed";
  EXPECT_EQ(Metric("swiftcache_scale_up_total"), 1);
}

TEST_F(CoordinatorTest, AdviceThatIsTooLittleIsMadeUpFromTheInnermost) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->NeedBack(4, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 4"));
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(3)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 3"));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2"), 0);
}

TEST_F(CoordinatorInRealTimeTest, ANeedDoesNotWaitForABrokerThatIsSilent) {
  Start({.revoke_deadline = absl::Seconds(60), .broker_patience = absl::Milliseconds(5)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2"), 0);
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(2)});
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2"), 0) << "advice that comes too late is none";
}

TEST_F(CoordinatorTest, ABrokerThatIsAwayIsNotWaitedForEither) {
  Start({.broker_patience = absl::Seconds(5)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(1, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 1"));
  coordinator_->OnScaleUp(broker_.last_question(), absl::UnavailableError("nobody there"));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
}

TEST_F(CoordinatorTest, TheBrokerHearsNothingWhileMemoryIsOnItsWayBack) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(4, /*blocks_lent=*/0);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->OnReleased(kv::LeaseId(1));
  Settle();
  EXPECT_EQ(broker_.log().Count("RELEASED 1"), 0);
  coordinator_->OnReleased(kv::LeaseId(2));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 1"));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 2"));
}

TEST_F(CoordinatorTest, ABorrowerThatKeepsItsLeaseDoesNotHoldBackReportsForLong) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(4, /*blocks_lent=*/0);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->OnReleased(kv::LeaseId(1));
  Settle();
  fake_clock_.Advance(absl::Milliseconds(10));
  EXPECT_TRUE(broker_.log().WaitFor("RELEASED 1"));
}

TEST_F(CoordinatorTest, ANeedThatIsMetMeanwhileTakesNothingMore) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  coordinator_->OnReleased(kv::LeaseId(1));
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 1"));
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(3)});
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2") + transport_.log().Count("SendRevoke 3"), 0);
}

TEST_F(CoordinatorTest, MemoryThatIsBackAndThatTheLoopHasNotHeardOfIsNotTakenTwice) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->OnReleased(kv::LeaseId(1));
  coordinator_->NeedBack(2, /*blocks_lent=*/6);  // the loop has not handled TakeBack yet
  Settle();
  EXPECT_EQ(Metric("swiftcache_scale_up_total"), 0);
  coordinator_->NeedBack(2, /*blocks_lent=*/4);
  EXPECT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
}

TEST_F(CoordinatorTest, ANeedThatIsRepeatedWhileItsMemoryIsOnItsWayIsOne) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  coordinator_->OnScaleUp(broker_.last_question(), std::vector<kv::LeaseId>{kv::LeaseId(2)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  Settle();
  EXPECT_EQ(broker_.log().Count("ScaleUp 2"), 1);
  EXPECT_EQ(transport_.log().Count("SendRevoke 1"), 0);
  EXPECT_EQ(Metric("swiftcache_scale_up_total"), 1);
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
