// SPDX-License-Identifier: Apache-2.0
// What a coordinator does for leases that its engine takes, and for those that it wishes for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

TEST_F(CoordinatorTest, AGrantedLeaseIsOpenedAndUsedAndTheBrokerHearsNothingOfIt) {
  Start();
  Take(9);
  Settle();
  EXPECT_EQ(Metric("swiftcache_lease_borrowed_total"), 1);
  EXPECT_TRUE(broker_.news().empty());
}

TEST_F(CoordinatorTest, ALeaseThatCannotBeOpenedNeverReachesTheLoop) {
  Start();
  coordinator_->OnLease(Taken(9));
  ASSERT_TRUE(transport_.log().WaitFor("Open 9"));
  coordinator_->OnOpened(kv::LeaseId(9), absl::PermissionDeniedError("not granted"));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(loop_.log().Count("Use 9 of 2"), 0);
}

TEST_F(CoordinatorTest, LeasesThatAreOpenedTogetherAreEachUsedWithTheirOwnView) {
  Start();
  coordinator_->OnLeases({Taken(8), Taken(9)});
  ASSERT_TRUE(transport_.log().WaitFor("Open 9"));
  for (const int64_t id : {9, 8}) {
    const transport::LeaseView view = transport_.AddLease(kv::LeaseId(id), 2 * kBlockBytes, kv::Epoch(id));
    coordinator_->OnOpened(kv::LeaseId(id), view);
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("Use ", id, " of 2")));
    EXPECT_EQ(loop_.ViewOf(kv::LeaseId(id)).base, view.base);
    EXPECT_EQ(loop_.ViewOf(kv::LeaseId(id)).word.granted, static_cast<uint64_t>(id));
  }
}

TEST_F(CoordinatorTest, ALeaseThatWasRevokedBeforeItWasOpenNeverReachesTheLoop) {
  Start();
  coordinator_->OnLease(Taken(9));
  ASSERT_TRUE(transport_.log().WaitFor("Open 9"));
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  coordinator_->OnOpened(kv::LeaseId(9), transport_.AddLease(kv::LeaseId(9), 2 * kBlockBytes, kv::Epoch(1)));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1);
  EXPECT_EQ(loop_.log().Count("Use 9 of 2"), 0);
}

TEST_F(CoordinatorTest, ALeaseThatComesToAnEngineThatEndsIsGivenBackUnused) {
  Start();
  Take(8);
  coordinator_->ReturnAll();
  ASSERT_TRUE(loop_.log().WaitFor("Drain 8"));
  coordinator_->OnLease(Taken(9));
  ASSERT_TRUE(transport_.log().WaitFor("Open 9"));
  coordinator_->OnOpened(kv::LeaseId(9), transport_.AddLease(kv::LeaseId(9), 2 * kBlockBytes, kv::Epoch(1)));
  ASSERT_TRUE(transport_.log().WaitFor("SendRelease 9"));
  coordinator_->Drained(kv::LeaseId(8));
  coordinator_->Stop(absl::InfiniteFuture());  // nothing is held that it would wait for
  EXPECT_EQ(loop_.log().Count("Use 9 of 2"), 0);
  EXPECT_EQ(Metric("swiftcache_lease_lost_total"), 0);
}

TEST_F(CoordinatorTest, ALeaseThatIsOfNoMoreUseIsDrainedAndReleased) {
  Start();
  Take(9);
  coordinator_->GiveBack(kv::LeaseId(9));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 0);
  coordinator_->Drained(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("SendRelease 9"));
  EXPECT_EQ(Metric("swiftcache_lease_given_back_total"), 1);
  EXPECT_EQ(Metric("swiftcache_lease_lost_total"), 0);
}

TEST_F(CoordinatorTest, ALeaseThatTheStepUnderWayDoesNotReadIsReleasedAtOnce) {
  Start();
  Take(9);
  ASSERT_TRUE(coordinator_->step_reads().Begin({kv::LeaseId(9)}, {}));
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(transport_.log().WaitFor("SendRelease 9"));
  Settle();
  EXPECT_EQ(loop_.log().Count("Drain 9"), 0);
  EXPECT_EQ(transport_.log().Count("Close 9"), 0) << "the loop has yet to hear of it";
  EXPECT_EQ(coordinator_->step_reads().End(), std::vector<kv::LeaseId>{kv::LeaseId(9)});
  coordinator_->Dropped(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(Metric("swiftcache_lease_unread_total"), 1);
  EXPECT_EQ(Metric("swiftcache_lease_lost_total"), 0);
  EXPECT_EQ(broker_.log().Count("LOST 9"), 0);
}

TEST_F(CoordinatorTest, ALeaseThatTheLoopHasNotHeardOfIsReleasedAtOnce) {
  Start();
  ASSERT_TRUE(coordinator_->step_reads().Begin({}, {}));
  coordinator_->OnLease(Taken(9));
  ASSERT_TRUE(transport_.log().WaitFor("Open 9"));
  coordinator_->OnOpened(kv::LeaseId(9), transport_.AddLease(kv::LeaseId(9), 2 * kBlockBytes, kv::Epoch(1)));
  ASSERT_TRUE(loop_.log().WaitFor("Use 9 of 2"));
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(transport_.log().WaitFor("SendRelease 9"));
  EXPECT_THAT(coordinator_->step_reads().End(), testing::IsEmpty());
  EXPECT_FALSE(coordinator_->step_reads().Accept(kv::LeaseId(9)));
  coordinator_->Dropped(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(loop_.log().Count("Drain 9"), 0);
}

TEST_F(CoordinatorTest, ALeaseThatTheStepReadsIsTheLoopsToDrain) {
  Start();
  Take(9);
  ASSERT_TRUE(coordinator_->step_reads().Begin({}, {}));
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  fake_clock_.Advance(absl::Milliseconds(30));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 0);
  EXPECT_THAT(coordinator_->step_reads().End(), testing::IsEmpty());
  coordinator_->Drained(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("SendRelease 9"));
}

TEST_F(CoordinatorTest, WhoSaysLongBeforeThatTheMemoryWillGoLeavesTheLoopTimeToMoveWhatLiesThere) {
  Start({.revoke_deadline = absl::Milliseconds(50)});
  Take(9);
  ASSERT_TRUE(coordinator_->step_reads().Begin({kv::LeaseId(9)}, {}));
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Seconds(4));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  fake_clock_.Advance(absl::Milliseconds(1999));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 0);
  fake_clock_.Advance(absl::Milliseconds(1));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1) << "but a long step does not hold it up to the end";
}

TEST_F(CoordinatorTest, AStepThatDoesNotReadALeaseHoldsItUpForHalfTheTimeAtMost) {
  Start();
  Take(9);
  ASSERT_TRUE(coordinator_->step_reads().Begin({}, {kv::LeaseId(9)}));
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  fake_clock_.Advance(absl::Milliseconds(24));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 0) << "the loop may still save what lies there";
  fake_clock_.Advance(absl::Milliseconds(1));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1);
}

TEST_F(CoordinatorTest, RenewalsGoOutEachThirdOfTheTtlForAsLongAsTheyAreAnswered) {
  Start({.ttl = absl::Seconds(9)});
  Take(9);
  for (int i = 1; i <= 5; ++i) {
    Settle();
    fake_clock_.Advance(absl::Seconds(3));
    Settle();
    ASSERT_EQ(transport_.log().Count("SendRenewal 9"), i);
    coordinator_->OnRenewed(kv::LeaseId(9));
  }
  for (int i = 0; i < 3; ++i) {  // and now no answer
    Settle();
    fake_clock_.Advance(absl::Seconds(3));
  }
  Settle();
  EXPECT_EQ(loop_.log().Count("Drain 9"), 1);
}

TEST_F(CoordinatorTest, ABrokersNewTtlBringsTheNextRenewalForward) {
  Start({.ttl = absl::Seconds(30)});
  Take(7);
  coordinator_->OnTerms({.ttl = absl::Seconds(3)});
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRenewal 7"), 0);
  fake_clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(transport_.log().WaitFor("SendRenewal 7"));
  coordinator_->OnTerms({.ttl = absl::Seconds(30)});
  Settle();
  fake_clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(transport_.log().WaitFor("SendRenewal 7", 2)) << "a longer one puts no renewal off";
}

TEST_F(CoordinatorTest, ARevokedLeaseIsReleasedOnlyAfterTheLoopHasDrainedIt) {
  Start();
  Take(9);
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRelease 9") + transport_.log().Count("Close 9"), 0);
  coordinator_->Drained(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1);
  EXPECT_EQ(Metric("swiftcache_lease_lost_total"), 0);
}

TEST_F(CoordinatorTest, ALoopThatDoesNotDrainInTimeLosesTheLeaseAndIsWaitedForAllTheSame) {
  Start();
  Take(9);
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  fake_clock_.Advance(absl::Milliseconds(60));
  Settle();
  EXPECT_EQ(loop_.log().Count("Lose 9"), 1);
  EXPECT_EQ(Metric("swiftcache_lease_lost_total"), 1);
  EXPECT_EQ(transport_.log().Count("Close 9"), 0) << "the loop may still read what is mapped";
  coordinator_->Dropped(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 0) << "there is nothing to give back";
}

TEST_F(CoordinatorTest, ADonorsDeathIsALossOnce) {
  Start();
  Take(9);
  coordinator_->OnDonorGone(kv::LeaseId(9));
  coordinator_->GenerationChanged(kv::LeaseId(9));
  ASSERT_TRUE(loop_.log().WaitFor("Lose 9"));
  ASSERT_TRUE(transport_.log().WaitFor("Abandon 9"));  // while the loop may wait for its stores
  coordinator_->Dropped(kv::LeaseId(9));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(loop_.log().Count("Lose 9"), 1);
  EXPECT_EQ(Metric("swiftcache_lease_lost_total"), 1);
}

TEST_F(CoordinatorTest, StoresAreAnsweredWithoutADetour) {
  Start();
  coordinator_->OnStored(transport::Ticket(5), absl::FailedPreconditionError("fenced"));
  EXPECT_EQ(loop_.log().Count("Stored 5 FAILED_PRECONDITION"), 1);
}

// --- wishes

TEST_F(CoordinatorTest, WishesAreOneRequestAtATimeAndTheLastOneCounts) {
  Start({.min_request_interval = absl::Seconds(1)});
  coordinator_->WishForMemory(100, 5);
  ASSERT_TRUE(broker_.log().WaitFor("Request 1 of 100 for 5"));
  coordinator_->WishForMemory(200, 6);
  coordinator_->WishForMemory(300, 7);
  Settle();
  coordinator_->OnLeaseResponse(LeaseResponse{.offered_bytes = 40, .lendable_bytes = 60});
  ASSERT_TRUE(loop_.log().WaitFor("Lendable 100"));
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 2 of 300 for 7"), 0) << "not that soon";
  fake_clock_.Advance(absl::Seconds(1));
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 2 of 300 for 7"), 1);
  coordinator_->OnLeaseResponse(LeaseResponse{.shortage = "nobody lends"});
  EXPECT_TRUE(loop_.log().WaitFor("Lendable 0: nobody lends"));
}

TEST_F(CoordinatorTest, ARequestWithoutAnAnswerIsRepeatedUnderItsKey) {
  Start({.min_request_interval = absl::Seconds(1)});
  coordinator_->WishForMemory(100, 5);
  ASSERT_TRUE(broker_.log().WaitFor("Request 1 of 100 for 5"));
  coordinator_->OnLeaseResponse(absl::DeadlineExceededError("the broker may have granted it"));
  Settle();
  fake_clock_.Advance(absl::Seconds(2));
  coordinator_->WishForMemory(100, 5);
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 1 of 100 for 5"), 2) << "so that the broker grants it once";
  coordinator_->OnLeaseResponse(LeaseResponse{});
  Settle();
  fake_clock_.Advance(absl::Seconds(2));
  coordinator_->WishForMemory(100, 5);
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 2 of 100 for 5"), 1) << "a new attempt has a new key";
}

// The loop goes on, and may want what it gives back.
TEST_F(CoordinatorTest, WhoGivesEverythingBackAsksForNothingMore) {
  Start();
  coordinator_->ReturnAll();
  coordinator_->WishForMemory(100, 5);
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 1 of 100 for 5"), 0);
}

TEST_F(CoordinatorTest, AShortageIsAskedAboutLessAndLessOften) {
  Start({.min_request_interval = absl::Seconds(1), .max_request_interval = absl::Seconds(4)});
  int64_t requests = 0;
  for (const double wait : {0.0, 2.0, 4.0, 4.0}) {
    fake_clock_.Advance(absl::Seconds(wait) - absl::Milliseconds(wait > 0 ? 1 : 0));
    coordinator_->WishForMemory(100, 0);
    Settle();
    if (wait > 0) {
      EXPECT_EQ(broker_.log().Count(absl::StrCat("Request ", requests + 1, " of 100 for 0")), 0) << wait;
    }
    fake_clock_.Advance(absl::Milliseconds(wait > 0 ? 1 : 0));
    Settle();
    ++requests;
    EXPECT_EQ(broker_.log().Count(absl::StrCat("Request ", requests, " of 100 for 0")), 1) << wait;
    coordinator_->OnLeaseResponse(LeaseResponse{.shortage = "all is lent"});
    Settle();
  }
}

class AskedInVainTest : public CoordinatorTest {
 protected:
  static constexpr int kTimes = 5;

  // Where nothing waits the next time is 32 seconds away.
  void AskInVain(int waiting_tokens = 0) {
    Start({.min_request_interval = absl::Seconds(1), .max_request_interval = absl::Seconds(64)});
    for (int i = 1; i <= kTimes; ++i) {
      coordinator_->WishForMemory(100, waiting_tokens);
      fake_clock_.Advance(absl::Seconds(1 << i));
      Settle();
      ASSERT_EQ(NumRequests(i, waiting_tokens), 1);
      Answer({.shortage = "all is lent"});
    }
  }
  void Answer(const LeaseResponse& answer) {
    coordinator_->OnLeaseResponse(answer);
    Settle();
  }
  void WishAfter(absl::Duration time, int waiting_tokens = 0) {
    fake_clock_.Advance(time);
    coordinator_->WishForMemory(100, waiting_tokens);
    Settle();
  }
  int64_t NumRequests(int number, int waiting_tokens = 0) {
    return broker_.log().Count(absl::StrCat("Request ", number, " of 100 for ", waiting_tokens));
  }
  void ExpectTheNextAfterASecond(int waiting_tokens) {
    WishAfter(absl::Seconds(1) - absl::Milliseconds(1), waiting_tokens);
    EXPECT_EQ(NumRequests(kTimes + 1, waiting_tokens), 0);
    fake_clock_.Advance(absl::Milliseconds(1));
    Settle();
    EXPECT_EQ(NumRequests(kTimes + 1, waiting_tokens), 1);
  }
};

TEST_F(AskedInVainTest, WhileRequestsWaitAShortageIsAskedAboutAsOftenAsAnything) {
  AskInVain();
  ExpectTheNextAfterASecond(/*waiting_tokens=*/5);
}

TEST_F(AskedInVainTest, QuestionsForWhatWaitsSayNothingOfAShortageOfWhoHasTime) {
  AskInVain(/*waiting_tokens=*/7);
  ExpectTheNextAfterASecond(/*waiting_tokens=*/0);
}

TEST_F(AskedInVainTest, WhoseLeaseIsRevokedAsksAsIfThereHadBeenNoShortage) {
  AskInVain();
  Take(9);
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  ExpectTheNextAfterASecond(/*waiting_tokens=*/0);
}

TEST_F(AskedInVainTest, ANewShortageBeginsAnew) {
  AskInVain();
  WishAfter(absl::Seconds(65));
  ASSERT_EQ(NumRequests(kTimes + 1), 1);
  Answer({.shortage = "all is lent"});
  WishAfter(absl::Seconds(2));
  EXPECT_EQ(NumRequests(kTimes + 2), 1);
}

TEST_F(AskedInVainTest, WhatIsComingIsAskedForSoon) {
  AskInVain();
  WishAfter(absl::Seconds(32));
  Answer({.coming_bytes = 70, .shortage = "all is lent"});
  ASSERT_TRUE(loop_.log().WaitFor("Lendable 70: all is lent"));
  WishAfter(absl::Seconds(1));
  EXPECT_EQ(NumRequests(kTimes + 2), 1);
}

TEST_F(AskedInVainTest, WhileLeasesComeAndCannotBeOpenedWhoWaitsAsksLessAndLessOftenToo) {
  Start({.min_request_interval = absl::Seconds(1), .max_request_interval = absl::Seconds(4)});
  int number = 0;
  for (const int wait : {0, 1, 2, 4, 4}) {
    if (wait > 0) {
      WishAfter(absl::Seconds(wait) - absl::Milliseconds(1), 5);
      EXPECT_EQ(NumRequests(number + 1, 5), 0) << wait;
    }
    WishAfter(absl::Milliseconds(1), 5);
    ++number;
    ASSERT_EQ(NumRequests(number, 5), 1) << wait;
    Answer({.offered_bytes = 4 * kBlockBytes});
    for (const int64_t id : {10 * number, 10 * number + 1}) {
      coordinator_->OnLease(Taken(id));
      ASSERT_TRUE(transport_.log().WaitFor(absl::StrCat("Open ", id)));
      coordinator_->OnOpened(kv::LeaseId(id), absl::ResourceExhaustedError("the kernel refuses"));
    }
    Settle();
  }
  Take(9);
  WishAfter(absl::Seconds(1), 5);
  EXPECT_EQ(NumRequests(number + 1, 5), 1) << "one is open";
}

TEST_F(AskedInVainTest, WhereNothingComesAfterAnOpeningThatFailedWhoWaitsAsksAsOftenAsBefore) {
  Start({.min_request_interval = absl::Seconds(1), .max_request_interval = absl::Seconds(4)});
  WishAfter(absl::ZeroDuration(), 5);
  Answer({.offered_bytes = 4 * kBlockBytes});
  coordinator_->OnLease(Taken(1));
  ASSERT_TRUE(transport_.log().WaitFor("Open 1"));
  coordinator_->OnOpened(kv::LeaseId(1), absl::UnavailableError("its donor is gone"));
  for (int number = 2; number <= 6; ++number) {
    Settle();
    WishAfter(absl::Seconds(1), 5);
    ASSERT_EQ(NumRequests(number, 5), 1) << number;
    Answer({.shortage = "all is lent"});
  }
}

TEST_F(AskedInVainTest, ALeaseThatItsDonorHasTakenBackMeanwhileSaysNothingOfTheNext) {
  Start({.min_request_interval = absl::Seconds(1), .max_request_interval = absl::Seconds(4)});
  for (int number = 1; number <= 4; ++number) {
    WishAfter(absl::Seconds(1), 5);
    ASSERT_EQ(NumRequests(number, 5), 1) << number;
    Answer({.offered_bytes = 4 * kBlockBytes});
    coordinator_->OnLease(Taken(number));
    ASSERT_TRUE(transport_.log().WaitFor(absl::StrCat("Open ", number)));
    coordinator_->OnOpened(kv::LeaseId(number), absl::PermissionDeniedError("it is not granted"));
    Settle();
  }
}

TEST_F(AskedInVainTest, WhoIsRegisteredAnewAsksAsIfThereHadBeenNoShortage) {
  AskInVain();
  coordinator_->OnTerms({});
  ExpectTheNextAfterASecond(/*waiting_tokens=*/0);
}

TEST_F(AskedInVainTest, WhoseLeaseIsLostAsksAsIfThereHadBeenNoShortage) {
  AskInVain();
  Take(9);
  coordinator_->GenerationChanged(kv::LeaseId(9));
  ASSERT_TRUE(loop_.log().WaitFor("Lose 9"));
  ExpectTheNextAfterASecond(/*waiting_tokens=*/0);
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
