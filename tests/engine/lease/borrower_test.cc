// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/borrower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/lease/borrower_harness.h"

namespace swiftcache::engine::lease::of_borrower {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(BorrowerTest, AGrantWithFewerBytesThanItsBlocksTakeIsIgnored) {
  Borrower borrower = NewBorrower();
  int64_t id = 0;
  for (const auto& [num_bytes, blocks] : std::vector<std::pair<int64_t, int64_t>>{
           {40960, 6}, {40960, 0}, {40960, -1}, {0, 5}, {-40960, 5}, {40960, int64_t{1} << 62}}) {
    Lease lease = MakeLease(++id);
    lease.num_bytes = num_bytes;
    lease.borrower_blocks = blocks;
    borrower.Granted(lease, kStart);
    EXPECT_THAT(Take(borrower), IsEmpty()) << num_bytes << " for " << blocks;
    EXPECT_EQ(borrower.ignored(), id);
  }
  EXPECT_THAT(borrower.Held(), IsEmpty());
}

TEST(BorrowerTest, AGrantedLeaseIsOpenedAndUsed) {
  Borrower borrower = ActiveBorrower();
  ASSERT_THAT(borrower.Held(), SizeIs(1));
  EXPECT_EQ(borrower.Held()[0].epoch, kv::Epoch(7));
}

TEST(BorrowerTest, WhatCannotBeOpenedIsClosed) {
  Borrower borrower = OpeningBorrower();
  borrower.Opened(kId, false, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  EXPECT_THAT(borrower.Held(), IsEmpty());
}

TEST(BorrowerTest, LeasesOfAnotherInstanceAreNotOurs) {
  Borrower borrower = NewBorrower();
  Lease lease = MakeLease(1);
  lease.borrower_instance = "chat-0";
  borrower.Granted(lease, kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
  EXPECT_EQ(borrower.ignored(), 1);
}

TEST(BorrowerTest, ADonorThatDoesNotAnswerTheOpeningIsGivenUp) {
  Borrower borrower = OpeningBorrower();
  EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl);
  borrower.Tick(kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  borrower.Opened(kId, true, kStart + kTtl);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

TEST(BorrowerTest, RenewsThreeTimesInALifetime) {
  Borrower borrower = ActiveBorrower();
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 3 * i);
    borrower.Tick(borrower.NextDeadline());
    EXPECT_THAT(Take(borrower), ElementsAre("renew 1"));
    borrower.Renewed(kId, kStart + kTtl / 3 * i);
  }
}

TEST(BorrowerTest, WhatTookLongToOpenIsRenewedAtOnce) {
  // Its donor may have answered when the opening began, and gives the lease up a ttl after that.
  for (const auto& [took, renewals] :
       std::vector<std::pair<absl::Duration, int>>{{kTtl / 3 - kLeft / 100, 0}, {kTtl / 3, 1}, {kTtl * 0.9, 1}}) {
    Borrower borrower = OpeningBorrower();
    borrower.Opened(kId, true, kStart + took);
    EXPECT_EQ(Take(borrower),
              renewals == 0 ? std::vector<std::string>{"use 1"} : (std::vector<std::string>{"use 1", "renew 1"}))
        << took;
    EXPECT_EQ(borrower.NextDeadline(), kStart + took + kTtl / 3);
  }
}

TEST(BorrowerTest, OfALeaseThatNobodyHasLookedAtItSaysSo) {
  Borrower borrower = ActiveBorrower();
  borrower.Tick(borrower.NextDeadline());
  const std::vector<Borrower::Action> actions = borrower.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Borrower::SendRenewal>(actions[0]).heat, kUnknownHeat);
}

TEST(BorrowerTest, HowHotALeaseIsGoesWithARenewalAtOnceAndWithLaterOnes) {
  Borrower borrower = ActiveBorrower();
  const auto heat = [&] {
    const std::vector<Borrower::Action> actions = borrower.TakeActions();
    return actions.size() == 1 ? std::get<Borrower::SendRenewal>(actions[0]).heat : -1;
  };
  borrower.NoteHeat(kId, 700, kStart + kTtl / 6);
  EXPECT_EQ(heat(), 700);
  EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 2) << "that was a renewal";
  borrower.Tick(borrower.NextDeadline());
  EXPECT_EQ(heat(), 700);
  borrower.Revoked(kId, kLeft, kStart + kTtl / 2);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  borrower.NoteHeat(kId, 800, kStart + kTtl / 2);
  EXPECT_THAT(Take(borrower), IsEmpty()) << "it goes anyway";
}

TEST(BorrowerTest, ADonorThatHasNotHeardOfALongerTtlHearsOfItsBorrowerInTime) {
  Borrower borrower = ActiveBorrower();
  borrower.SetTtl(kTtl * 10, kStart);
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 3 * i);
    borrower.Tick(borrower.NextDeadline());
    EXPECT_THAT(Take(borrower), ElementsAre("renew 1"));
    borrower.Renewed(kId, kStart + kTtl / 3 * i);
  }
  borrower.SetTtl(kTtl / 3, borrower.NextDeadline() - kTtl / 3);
  EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 3 * 5 + kTtl / 9) << "a shorter one counts";
}

TEST(BorrowerTest, ADonorThatAnswersNoRenewalIsLeft) {
  Borrower borrower = ActiveBorrower();
  borrower.Tick(kStart + kTtl / 3);
  borrower.Tick(kStart + kTtl * 2 / 3);
  EXPECT_THAT(Take(borrower), ElementsAre("renew 1", "renew 1"));
  borrower.Tick(kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  borrower.Drained(kId, kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("release 1", "close 1"));
}

TEST(BorrowerTest, ARevokedLeaseIsReleasedOnceItIsDrained) {
  Borrower borrower = ActiveBorrower();
  borrower.Revoked(kId, kLeft, kStart);
  const auto actions = borrower.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<Borrower::Drain>(actions[0]).until, kStart + kLeft);
  borrower.Drained(kId, kStart + kLeft / 2);
  EXPECT_THAT(Take(borrower), ElementsAre("release 1", "close 1"));
  EXPECT_EQ(borrower.num_leases(), 0);
}

// A donor that ends in order gives time, and takes it back where it needs the memory.
TEST(BorrowerTest, ADrainIsHastenedAndNeverSlowed) {
  Borrower borrower = DrainingBorrower();
  borrower.Revoked(kId, kLeft, kStart + kLeft / 2);
  EXPECT_THAT(Take(borrower), IsEmpty());
  borrower.Revoked(kId, kLeft / 4, kStart + kLeft / 2);
  const auto actions = borrower.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<Borrower::Drain>(actions[0]).until, kStart + kLeft * 3 / 4);
  borrower.Tick(kStart + kLeft * 3 / 4);
  EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
}

TEST(BorrowerTest, WhatIsNotDrainedInTimeIsLostAndClosedWhenKvLetsGo) {
  Borrower borrower = DrainingBorrower();
  borrower.Tick(kStart + kLeft);
  EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
  EXPECT_THAT(borrower.Held(), IsEmpty());
  EXPECT_EQ(borrower.NextDeadline(), absl::InfiniteFuture());
  borrower.Dropped(kId, kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
}

TEST(BorrowerTest, ADrainThatCrossesTheLossClosesWithoutARelease) {
  Borrower borrower = DrainingBorrower();
  borrower.Tick(kStart + kLeft);
  borrower.TakeActions();
  borrower.Drained(kId, kStart + kLeft);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  borrower.Dropped(kId, kStart + kLeft);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

TEST(BorrowerTest, AForeignTimeLeftIsNotBelievedBeyondReason) {
  for (absl::Duration left : {absl::InfiniteDuration(), -absl::InfiniteDuration(), absl::Hours(1000000)}) {
    Borrower borrower = ActiveBorrower();
    borrower.Revoked(kId, left, kStart);
    EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
    EXPECT_GE(borrower.NextDeadline(), kStart);
    EXPECT_LE(borrower.NextDeadline(), kStart + kTtl);
  }
}

TEST(BorrowerTest, AChangedGenerationIsALoss) {
  for (auto make : {ActiveBorrower, DrainingBorrower}) {
    Borrower borrower = make();
    borrower.GenerationChanged(kId, kStart);
    EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
  }
}

TEST(BorrowerTest, AFailedStoreIsALossForItsOwnReason) {
  for (auto make : {ActiveBorrower, DrainingBorrower}) {
    Borrower borrower = make();
    borrower.StoreFailed(kId, "the channel closed", kStart);
    const auto actions = borrower.TakeActions();
    ASSERT_EQ(actions.size(), 1);
    EXPECT_EQ(std::get<Borrower::Lose>(actions[0]).why, "a store failed: the channel closed");
    EXPECT_EQ(std::get<Borrower::Lose>(actions[0]).id, kId);
  }
}

TEST(BorrowerTest, ADonorThatTakesNoStoresIsLeftWithAllItsLeases) {
  Borrower borrower = ActiveBorrower();
  for (const auto& [id, donor] :
       std::vector<std::pair<int64_t, std::string>>{{2, MakeLease(1).donor_instance}, {3, "x"}}) {
    Lease lease = MakeLease(id);
    lease.donor_instance = donor;
    borrower.Granted(lease, kStart);
    borrower.Opened(lease.id, true, kStart);
  }
  (void)Take(borrower);
  borrower.DonorSilent(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1", "drain 2"));
  const int64_t ignored = borrower.ignored();
  borrower.DonorSilent(kId, kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
  EXPECT_EQ(borrower.ignored(), ignored + 1);
}

// Stores that it does not take keep others from going elsewhere, however long its leases may take to leave.
TEST(BorrowerTest, ADonorThatTakesNoStoresHastensTheDrainsOfItsLeases) {
  Borrower borrower = ActiveBorrower();
  borrower.Granted(MakeLease(2), kStart);
  borrower.Opened(kv::LeaseId(2), true, kStart);
  borrower.Revoked(kId, kTtl, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("open 2", "use 2", "drain 1"));
  borrower.DonorSilent(kId, kStart);
  const auto actions = borrower.TakeActions();
  ASSERT_THAT(actions, SizeIs(2));
  for (const auto& action : actions) EXPECT_EQ(std::get<Borrower::Drain>(action).until, kStart + kDrain);
  borrower.DonorSilent(kId, kStart + kDrain / 2);
  EXPECT_THAT(Take(borrower), IsEmpty()) << "never slowed";
  borrower.Tick(kStart + kDrain);
  EXPECT_THAT(Take(borrower), ElementsAre("lose 1", "lose 2"));
}

TEST(BorrowerTest, AnOpeningThatIsRevokedIsReleasedUnused) {
  Borrower borrower = OpeningBorrower();
  borrower.Revoked(kId, kLeft, kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
  borrower.Opened(kId, true, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("release 1", "close 1"));
}

TEST(BorrowerTest, AnEngineThatEndsWaitsForAnOpeningASecond) {
  Borrower borrower = OpeningBorrower();
  borrower.GiveBackAll(kLeft, kStart);
  borrower.Tick(kStart + kOpeningPatience - absl::Nanoseconds(1));
  EXPECT_THAT(Take(borrower), IsEmpty());
  borrower.Tick(kStart + kOpeningPatience);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  EXPECT_FALSE(borrower.any_held());
}

TEST(BorrowerTest, AnEngineThatEndsGivesBackWhatItHasAndWhatIsOnItsWay) {
  Borrower borrower = ActiveBorrower();
  borrower.Granted(MakeLease(2), kStart);
  (void)Take(borrower);
  borrower.GiveBackAll(kLeft, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  borrower.Granted(MakeLease(3), kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("open 3"));
  EXPECT_TRUE(borrower.any_held());
  borrower.Opened(kv::LeaseId(3), true, kStart);
  borrower.Opened(kv::LeaseId(2), true, kStart);
  borrower.Drained(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("release 3", "close 3", "release 2", "close 2", "release 1", "close 1"));
  EXPECT_FALSE(borrower.any_held());
}

TEST(BorrowerTest, WhatItNeedsNoMoreIsDrainedAndReleased) {
  Borrower borrower = ActiveBorrower();
  borrower.GiveBack(kId, kLeft, kStart);
  borrower.Drained(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1", "release 1", "close 1"));
}

TEST(BorrowerTest, ALateGrantDoesNotBringALeaseBack) {
  Borrower borrower = LosingBorrower();
  borrower.Granted(MakeLease(1), kStart);
  borrower.Dropped(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  borrower.Granted(MakeLease(1), kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

// Whatever the broker believes: a lease ends by its channel.
TEST(BorrowerTest, WatchOpensWhatIsGrantedAndEndsNothing) {
  Borrower borrower = NewBorrower();
  Lease lease = MakeLease(1);
  for (State state : {State::kOffered, State::kGranted}) {
    lease.state = state;
    borrower.OnLeaseUpdate(lease, kStart);
  }
  EXPECT_THAT(Take(borrower), ElementsAre("open 1"));
  for (auto make : {OpeningBorrower, ActiveBorrower, DrainingBorrower}) {
    Borrower holding = make();
    for (State state : {State::kRevoking, State::kReleased, State::kFenced}) {
      lease.state = state;
      holding.OnLeaseUpdate(lease, kStart);
    }
    EXPECT_THAT(Take(holding), IsEmpty());
    EXPECT_THAT(holding.Held(), SizeIs(1));
  }
}

}  // namespace
}  // namespace swiftcache::engine::lease::of_borrower
