// SPDX-License-Identifier: Apache-2.0
// The coordinator's thread between fakes of its three neighbours. Where the clock is a fake one, a message wakes the
// thread after it was moved; what must happen by itself is tested by the real clock.
#include "engine/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_transport.h"
#include "tests/fakes/recording_lease_broker.h"
#include "tests/fakes/recording_loop_port.h"

namespace swiftcache::engine::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kMe[] = "me";
constexpr int64_t kBlockBytes = 4096;

class CoordinatorTest : public testing::Test {
 protected:
  explicit CoordinatorTest(const Clock* clock = nullptr) : clock_(clock == nullptr ? fake_clock_ : *clock) {}

  Coordinator& Start(Coordinator::Options options = {}) {
    options.instance_id = kMe;
    options.num_blocks = 1000;
    options.block_bytes = kBlockBytes;
    coordinator_ = std::make_unique<Coordinator>(options, clock_, registry_);
    coordinator_->Start(&transport_, &broker_, &loop_);
    return *coordinator_;
  }
  ~CoordinatorTest() override {
    if (coordinator_) coordinator_->Stop(absl::InfinitePast());
  }

  static lease::Lease Lease(int64_t id, lease::State state) {
    return {.id = kv::LeaseId(id),
            .extent = {.first_block = 10 * id, .num_blocks = 2},
            .num_bytes = 2 * kBlockBytes,
            .borrower_blocks = 2,
            .epoch = kv::Epoch(1),
            .state = state,
            .channel = "donor-channel",
            .capability = "secret"};
  }
  // This engine gives it to another.
  static lease::Lease Given(int64_t id, lease::State state = lease::State::kOffered) {
    lease::Lease lease = Lease(id, state);
    lease.donor_instance = kMe;
    lease.borrower_instance = absl::StrCat("borrower of ", id);
    return lease;
  }
  // This engine takes it of another.
  static lease::Lease Taken(int64_t id, lease::State state = lease::State::kGranted) {
    lease::Lease lease = Lease(id, state);
    lease.donor_instance = "other";
    lease.borrower_instance = kMe;
    return lease;
  }
  // Up to where the borrower uses it.
  void Lend(int64_t id) {
    coordinator_->OnLease(Given(id));
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("Clear ", id)));
    coordinator_->Cleared(kv::LeaseId(id), true);
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("ACCEPTED ", id)));
    coordinator_->OnBorrowerOpened(kv::LeaseId(id));
  }
  void Take(int64_t id) {
    coordinator_->OnLease(Taken(id));
    ASSERT_TRUE(transport_.log().WaitFor(absl::StrCat("Open ", id)));
    coordinator_->OnOpened(kv::LeaseId(id), transport_.AddLease(kv::LeaseId(id), 2 * kBlockBytes, kv::Epoch(1)));
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("Use ", id, " of 2")));
  }
  // The thread has handled everything that was said before, by the present time.
  void Settle() {
    const int64_t mark = ++marks_;
    coordinator_->ReportWindow({.used_blocks = 1000000 + mark});
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("Window ", 1000000 + mark)));
    coordinator_->ReportWindow({.used_blocks = 2000000 + mark});  // behind the tick that follows the first
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("Window ", 2000000 + mark)));
  }
  double Metric(const std::string& name) const {
    const std::string text = registry_.Serialize();
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  FakeClock fake_clock_;
  const Clock& clock_;
  Metrics registry_;
  transport::FakeTransport transport_;
  RecordingLeaseBroker broker_;
  RecordingLoopPort loop_;
  int64_t marks_ = 0;
  std::unique_ptr<Coordinator> coordinator_;
};

const RealClock kRealClock;
class CoordinatorInRealTimeTest : public CoordinatorTest {
 protected:
  CoordinatorInRealTimeTest() : CoordinatorTest(&kRealClock) {}
};

// --- as a donor

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
  ASSERT_TRUE(broker_.log().WaitFor("ACCEPTED 7"));
  EXPECT_EQ(broker_.news().back().epoch, kv::Epoch(1));
  EXPECT_EQ(Metric("swiftcache_lease_granted_total"), 1);
}

TEST_F(CoordinatorTest, AnExtentThatCannotBeClearedIsDeclined) {
  Start();
  coordinator_->OnLease(Given(7));
  ASSERT_TRUE(loop_.log().WaitFor("Clear 7"));
  coordinator_->Cleared(kv::LeaseId(7), false);
  ASSERT_TRUE(broker_.log().WaitFor("DECLINED 7"));
  Settle();
  EXPECT_EQ(transport_.log().Count("Grant 7"), 0);
  EXPECT_TRUE(coordinator_->Held().empty());
}

TEST_F(CoordinatorTest, AGrantThatFailsGivesTheMemoryBackToTheLoop) {
  Start();
  transport_.on_grant = [](const transport::GrantSpec&) { return absl::ResourceExhaustedError("no words left"); };
  coordinator_->OnLease(Given(7));
  ASSERT_TRUE(loop_.log().WaitFor("Clear 7"));
  coordinator_->Cleared(kv::LeaseId(7), true);
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
  ASSERT_TRUE(broker_.log().WaitFor("DECLINED 7"));
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
    coordinator_->OnRenewal(kv::LeaseId(7));
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

TEST_F(CoordinatorInRealTimeTest, TheDeadlineOfARevocationFencesAlone) {
  constexpr absl::Duration kDeadline = absl::Milliseconds(30), kSlack = absl::Milliseconds(200);
  Start({.revoke_deadline = kDeadline});
  Lend(7);
  const absl::Time begin = clock_.Now();
  coordinator_->OnLease(Given(7, lease::State::kRevoking));
  ASSERT_TRUE(transport_.log().WaitFor("Fence 7")) << "nobody said anything more";
  EXPECT_GE(clock_.Now() - begin, kDeadline);
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
  EXPECT_EQ(coordinator_->reclaims().count, 1);
  EXPECT_LE(coordinator_->reclaims().last, kDeadline + kSlack);
  ASSERT_TRUE(broker_.log().WaitFor("FENCED 7"));
}

TEST_F(CoordinatorTest, ALeaseThatTheBrokerDoesNotKnowEnds) {
  Start();
  Lend(7);
  coordinator_->OnReportRefused({.id = kv::LeaseId(7), .what = LeaseNews::What::kRevoking},
                                absl::NotFoundError("no such lease"));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7"));
}

TEST_F(CoordinatorTest, AnAcceptanceThatIsRefusedIsTakenBack) {
  Start();
  coordinator_->OnLease(Given(7));
  ASSERT_TRUE(loop_.log().WaitFor("Clear 7"));
  coordinator_->Cleared(kv::LeaseId(7), true);
  ASSERT_TRUE(broker_.log().WaitFor("ACCEPTED 7"));
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
  coordinator_->OnScaleUp(std::vector<kv::LeaseId>{kv::LeaseId(3)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 3"));
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 1") + transport_.log().Count("SendRevoke 2"), 0) << "that is enough";
}

TEST_F(CoordinatorTest, MoreThanIsNeededIsRevokedIfTheBrokerAdvisesIt) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  coordinator_->OnScaleUp(std::vector<kv::LeaseId>{kv::LeaseId(3), kv::LeaseId(2)});
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
  coordinator_->OnScaleUp(std::vector<kv::LeaseId>{kv::LeaseId(3)});
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
  coordinator_->OnScaleUp(std::vector<kv::LeaseId>{kv::LeaseId(2)});
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 2"), 0) << "advice that comes too late is none";
}

TEST_F(CoordinatorTest, ABrokerThatIsAwayIsNotWaitedForEither) {
  Start({.broker_patience = absl::Seconds(5)});
  Lend(1), Lend(2);
  coordinator_->NeedBack(1, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 1"));
  coordinator_->OnScaleUp(absl::UnavailableError("nobody there"));
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
}

TEST_F(CoordinatorTest, TheBrokerHearsOfARevocationOnceTheMemoryIsBack) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  Settle();
  EXPECT_EQ(broker_.log().Count("REVOKING 1"), 0);
  coordinator_->OnReleased(kv::LeaseId(1));
  ASSERT_TRUE(broker_.log().WaitFor("REVOKING 1"));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 1"));
}

TEST_F(CoordinatorTest, ABorrowerThatKeepsItsLeaseDoesNotHoldBackReportsForLong) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
  Settle();
  fake_clock_.Advance(absl::Milliseconds(10));
  EXPECT_TRUE(broker_.log().WaitFor("REVOKING 1"));
}

TEST_F(CoordinatorTest, ANeedThatIsMetMeanwhileTakesNothingMore) {
  Start({.broker_patience = absl::Hours(1)});
  Lend(1), Lend(2), Lend(3);
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  ASSERT_TRUE(broker_.log().WaitFor("ScaleUp 2"));
  coordinator_->OnReleased(kv::LeaseId(1));
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 1"));
  coordinator_->OnScaleUp(std::vector<kv::LeaseId>{kv::LeaseId(3)});
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
  coordinator_->OnScaleUp(std::vector<kv::LeaseId>{kv::LeaseId(2)});
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 2"));
  coordinator_->NeedBack(2, /*blocks_lent=*/0);
  Settle();
  EXPECT_EQ(broker_.log().Count("ScaleUp 2"), 1);
  EXPECT_EQ(transport_.log().Count("SendRevoke 1"), 0);
  EXPECT_EQ(Metric("swiftcache_scale_up_total"), 1);
}

// --- as a borrower

TEST_F(CoordinatorTest, AGrantedLeaseIsOpenedUsedAndReported) {
  Start();
  Take(9);
  ASSERT_TRUE(broker_.log().WaitFor("ACTIVE 9"));
  EXPECT_EQ(Metric("swiftcache_lease_borrowed_total"), 1);
}

TEST_F(CoordinatorTest, ALeaseThatCannotBeOpenedNeverReachesTheLoop) {
  Start();
  coordinator_->OnLease(Taken(9));
  ASSERT_TRUE(transport_.log().WaitFor("Open 9"));
  coordinator_->OnOpened(kv::LeaseId(9), absl::PermissionDeniedError("not granted"));
  ASSERT_TRUE(broker_.log().WaitFor("LOST 9"));
  ASSERT_TRUE(transport_.log().WaitFor("Close 9"));
  EXPECT_EQ(loop_.log().Count("Use 9 of 2"), 0);
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
  EXPECT_EQ(broker_.log().Count("LOST 9"), 1);
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
  EXPECT_EQ(broker_.log().Count("LOST 9"), 0);
}

TEST_F(CoordinatorTest, ALoopThatDoesNotDrainInTimeLosesTheLeaseAndIsWaitedForAllTheSame) {
  Start();
  Take(9);
  coordinator_->OnRevoked(kv::LeaseId(9), absl::Milliseconds(50));
  ASSERT_TRUE(loop_.log().WaitFor("Drain 9"));
  fake_clock_.Advance(absl::Milliseconds(60));
  Settle();
  EXPECT_EQ(loop_.log().Count("Lose 9"), 1);
  EXPECT_EQ(broker_.log().Count("LOST 9"), 1);
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
  EXPECT_EQ(broker_.log().Count("LOST 9"), 1);
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
  coordinator_->WantMemory(100, 5);
  ASSERT_TRUE(broker_.log().WaitFor("Request 1 of 100 for 5"));
  coordinator_->WantMemory(200, 6);
  coordinator_->WantMemory(300, 7);
  Settle();
  coordinator_->OnAnswer(LeaseAnswer{.offered_bytes = 40, .lendable_bytes = 60});
  ASSERT_TRUE(loop_.log().WaitFor("Lendable 100"));
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 2 of 300 for 7"), 0) << "not that soon";
  fake_clock_.Advance(absl::Seconds(1));
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 2 of 300 for 7"), 1);
  coordinator_->OnAnswer(LeaseAnswer{.shortage = "nobody lends"});
  EXPECT_TRUE(loop_.log().WaitFor("Lendable 0: nobody lends"));
}

TEST_F(CoordinatorTest, ARequestWithoutAnAnswerIsRepeatedUnderItsKey) {
  Start({.min_request_interval = absl::Seconds(1)});
  coordinator_->WantMemory(100, 5);
  ASSERT_TRUE(broker_.log().WaitFor("Request 1 of 100 for 5"));
  coordinator_->OnAnswer(absl::DeadlineExceededError("the broker may have granted it"));
  Settle();
  fake_clock_.Advance(absl::Seconds(2));
  coordinator_->WantMemory(100, 5);
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 1 of 100 for 5"), 2) << "so that the broker grants it once";
  coordinator_->OnAnswer(LeaseAnswer{});
  Settle();
  fake_clock_.Advance(absl::Seconds(2));
  coordinator_->WantMemory(100, 5);
  Settle();
  EXPECT_EQ(broker_.log().Count("Request 2 of 100 for 5"), 1) << "a new attempt has a new key";
}

TEST_F(CoordinatorTest, AShortageIsAskedAboutLessAndLessOften) {
  Start({.min_request_interval = absl::Seconds(1), .max_request_interval = absl::Seconds(4)});
  int64_t requests = 0;
  for (const double wait : {0.0, 2.0, 4.0, 4.0}) {
    fake_clock_.Advance(absl::Seconds(wait) - absl::Milliseconds(wait > 0 ? 1 : 0));
    coordinator_->WantMemory(100, 5);
    Settle();
    if (wait > 0) {
      EXPECT_EQ(broker_.log().Count(absl::StrCat("Request ", requests + 1, " of 100 for 5")), 0) << wait;
    }
    fake_clock_.Advance(absl::Milliseconds(wait > 0 ? 1 : 0));
    Settle();
    ++requests;
    EXPECT_EQ(broker_.log().Count(absl::StrCat("Request ", requests, " of 100 for 5")), 1) << wait;
    coordinator_->OnAnswer(LeaseAnswer{.shortage = "all is lent"});
    Settle();
  }
}

// --- the end

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

TEST_F(CoordinatorTest, AtTheEndPeersThatDoNotAnswerAreFenced) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1);
  coordinator_->Stop(absl::InfinitePast());
  EXPECT_EQ(transport_.log().Count("SendRevoke 1"), 1);
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
}

TEST_F(CoordinatorTest, HeldTellsWhatIsGivenAndTaken) {
  Start();
  Lend(1);
  Take(9);
  Settle();
  std::vector<int64_t> held;
  for (const lease::Lease& lease : coordinator_->Held()) held.push_back(lease.id.value());
  EXPECT_THAT(held, testing::UnorderedElementsAre(1, 9));
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
