// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/donor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/engine/lease/donor_harness.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(DonorTest, ALeaseIsClearedGrantedAndAcceptedBeforeItIsUsed) {
  Donor donor = ActiveDonor();
  ASSERT_THAT(donor.Held(), SizeIs(1));
  EXPECT_EQ(donor.Held()[0].state, State::kGranted);
  EXPECT_EQ(donor.Held()[0].epoch, kv::Epoch(7));
  EXPECT_EQ(donor.Held()[0].capability, "secret");
  EXPECT_EQ(donor.blocks_on_loan(), 10);
}

TEST(DonorTest, WhatKvCannotClearIsDeclined) {
  Donor donor = ClearingDonor();
  donor.Cleared(kId, false, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("RELEASED 1"));
  EXPECT_THAT(donor.Held(), IsEmpty());
}

TEST(DonorTest, WhatTheTransportCannotGrantGoesBackToKv) {
  Donor donor = GrantingDonor();
  donor.GrantFailed(kId, "no generation word left", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("take 1", "RELEASED 1"));
}

TEST(DonorTest, OffersToAnotherInstanceAreNotOurs) {
  Donor donor = NewDonor();
  Lease lease = MakeLease(1);
  lease.donor_instance = "summer-0";
  donor.Offered(lease, kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.ignored(), 1);
}

TEST(DonorTest, AnExtentIsNotLentTwice) {
  Donor donor = ActiveDonor();
  donor.Offered(MakeLease(2, 85, 6), kStart);
  auto actions = donor.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_THAT(std::get<Donor::Say>(actions[0]).why, HasSubstr("lease 1"));
  EXPECT_EQ(std::get<Donor::Say>(actions[0]).lease.state, State::kReleased);
  donor.Offered(MakeLease(3, 80, 10), kStart);  // adjacent
  EXPECT_THAT(Take(donor), ElementsAre("clear 3"));
}

TEST(DonorTest, ExtentsThatAreNotItsOwnAreDeclined) {
  Donor donor = NewDonor();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t id = 0;
  for (Extent extent :
       {Extent{-1, 5}, Extent{0, 0}, Extent{0, -5}, Extent{kMax, 1}, Extent{5, kMax}, Extent{kMax, kMax},
        Extent{kArenaBlocks, 1}, Extent{0, kArenaBlocks + 1}, Extent{(int64_t{1} << 32) + 5, 5}}) {
    Lease lease = MakeLease(++id);
    lease.extent = extent;
    donor.Offered(lease, kStart);
    EXPECT_THAT(Take(donor), ElementsAre(absl::StrCat("RELEASED ", id)));
  }
}

TEST(DonorTest, ItsReserveIsNotLentWhateverTheBrokerOffers) {
  Donor donor({.instance_id = "summer-1", .num_blocks = kArenaBlocks, .block_bytes = 4096, .never_lent_blocks = 60});
  donor.Offered(MakeLease(1, 59, 2), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("RELEASED 1"));
  donor.Offered(MakeLease(2, 60, 2), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("clear 2"));
  Donor closed({.instance_id = "summer-1", .num_blocks = 100, .block_bytes = 4096, .never_lent_blocks = 100});
  closed.Offered(MakeLease(3, 99, 1), kStart);
  EXPECT_THAT(Take(closed), ElementsAre("RELEASED 3"));
}

// The transport would grant them: to the borrower, and over what was never cleared.
TEST(DonorTest, AnOfferOfMoreOrFewerBytesThanItsBlocksHaveIsDeclined) {
  Donor donor = NewDonor();
  int64_t id = 0;
  for (int64_t num_bytes : {0, -4096, 9 * 4096, 11 * 4096, 10 * 4096 + 1}) {
    Lease lease = MakeLease(++id);
    lease.num_bytes = num_bytes;
    donor.Offered(lease, kStart);
    EXPECT_THAT(Take(donor), ElementsAre(absl::StrCat("RELEASED ", id))) << num_bytes;
  }
}

TEST(DonorTest, ARenewalIsAnsweredAndPutsTheEndOff) {
  Donor donor = ActiveDonor();
  donor.Renewal(kId, 0, kStart + kTtl / 2);
  EXPECT_THAT(Take(donor), ElementsAre("renewed 1"));
  donor.Tick(kStart + kTtl);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl * 3 / 2);
  donor.Tick(donor.NextDeadline());
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

// A broker starts again with another ttl, and one of the two engines does not hear of it.
TEST(DonorTest, ABorrowerThatHasNotHeardOfAShorterTtlKeepsItsLease) {
  Donor donor = ActiveDonor();
  donor.SetTtl(kTtl / 10);
  for (int renewal = 1; renewal <= 8; ++renewal) {
    const absl::Time now = kStart + kTtl / 4 * renewal;
    donor.Tick(now);
    donor.Renewal(kId, 0, now);
    EXPECT_THAT(Take(donor), ElementsAre("renewed 1"));
  }
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl * 3);
  donor.SetTtl(kTtl * 2);
  donor.Renewal(kId, 0, kStart + kTtl * 2);
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl * 4) << "a longer one counts";
}

// It was granted under the broker before, and opened by a borrower that has heard of the new one's ttl.
TEST(DonorTest, ALongerTtlHoldsFromTheLastRenewalOn) {
  Donor donor = ActiveDonor();
  donor.SetTtl(kTtl * 3);
  donor.Tick(kStart + kTtl);
  EXPECT_THAT(Take(donor), IsEmpty()) << "its borrower renews it just now";
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl * 3);
  Donor revoked = RevokingDonor();
  revoked.SetTtl(kTtl * 3);
  EXPECT_EQ(revoked.NextDeadline(), kStart + kDeadline);
}

TEST(DonorTest, LeasesThatBeginAfterAShorterTtlHaveThat) {
  Donor donor = NewDonor();
  donor.SetTtl(kTtl / 10);
  donor.Offered(MakeLease(1), kStart);
  donor.Cleared(kId, true, kStart);
  donor.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl / 10);
}

TEST(DonorTest, ALeaseThatIsNeverOpenedIsFencedAfterItsTtl) {
  Donor donor = GrantedDonor();
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl);
  donor.Tick(kStart + kTtl);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
  EXPECT_EQ(donor.NextDeadline(), absl::InfiniteFuture());
}

TEST(DonorTest, TheBorrowerGivesBackWithinTheDeadline) {
  Donor donor = RevokingDonor();
  donor.BorrowerReleased(kId, kStart + absl::Milliseconds(3));
  const auto actions = donor.TakeActions();
  ASSERT_THAT(actions, SizeIs(3));
  EXPECT_EQ(std::get<Donor::Fence>(actions[0]).id, kId);
  EXPECT_EQ(std::get<Donor::TakeBack>(actions[1]).revoked_at, kStart);
  EXPECT_EQ(std::get<Donor::TakeBack>(actions[1]).extent, (Extent{90, 10}));
  EXPECT_EQ(std::get<Donor::Say>(actions[2]).lease.id, kId);
  EXPECT_EQ(std::get<Donor::Say>(actions[2]).lease.state, State::kReleased);
}

TEST(DonorTest, AtTheDeadlineTheDonorFencesAlone) {
  Donor donor = RevokingDonor();
  EXPECT_EQ(donor.NextDeadline(), kStart + kDeadline);
  donor.Tick(kStart + kDeadline - absl::Nanoseconds(1));
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.Tick(kStart + kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

// Whose ttl is over may have renewed it by a message that waits.
TEST(DonorTest, BetweenMessagesWhatIsOverdueIsFencedAndNothingElse) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90)), Lend(donor, MakeLease(2, 70));
  donor.NeedBack(1, kStart + kTtl - kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
  donor.FenceOverdue(kStart + kTtl);
  EXPECT_THAT(Take(donor), ElementsAre("fence 2", "take 2 fenced", "FENCED 2"));
}

TEST(DonorTest, ARenewalDoesNotPutARevocationOff) {
  Donor donor = RevokingDonor();
  donor.Renewal(kId, 0, kStart + kDeadline / 2);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.NextDeadline(), kStart + kDeadline);
}

TEST(DonorTest, ASecondRevocationDoesNotPutTheFirstOff) {
  Donor donor = RevokingDonor();
  donor.Revoke(kId, "operator", kStart + kDeadline / 2);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.NextDeadline(), kStart + kDeadline);
}

TEST(DonorTest, ABorrowerThatIsGoneIsFencedAtOnce) {
  for (auto make : {GrantedDonor, ActiveDonor, RevokingDonor}) {
    Donor donor = make();
    donor.BorrowerGone(kId, kStart);
    EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
  }
}

TEST(DonorTest, ALeaseThatNobodyReadsYetIsTakenBackAtOnce) {
  Donor donor = GrantedDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));
}

TEST(DonorTest, ABorrowerThatIsJustOpeningLosesNothingToADonorThatEnds) {
  Donor donor = GrantedDonor();
  donor.RevokeAll("the engine ends", kStart, absl::Seconds(5));
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 1s"));
  donor.BorrowerOpened(kId, kStart + absl::Milliseconds(100));
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 900ms")) << "the first one may have found no channel";
  donor.BorrowerOpened(kId, kStart + absl::Milliseconds(200));
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.BorrowerReleased(kId, kStart + absl::Milliseconds(300));
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));
}

TEST(DonorTest, ADonorThatEndsWaitsForAnOpeningASecondAndNoLongerThanElse) {
  for (const auto& [age, left] :
       {std::pair(absl::ZeroDuration(), "1s"), std::pair(kTtl - absl::Milliseconds(10), "10ms")}) {
    Donor donor = GrantedDonor();
    donor.RevokeAll("the engine ends", kStart + age, absl::Minutes(1));
    EXPECT_THAT(Take(donor), ElementsAre(absl::StrCat("revoke 1 in ", left)));
    donor.Tick(donor.NextDeadline());
    EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1")) << "nobody had it";
  }
}

TEST(DonorTest, WhatIsWantedBackWhileItIsClearedIsNotGranted) {
  Donor donor = ClearingDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("stop clearing 1"));
  donor.Cleared(kId, true, kStart);  // it was too late for that
  EXPECT_THAT(Take(donor), ElementsAre("take 1", "RELEASED 1"));
}

TEST(DonorTest, WhatIsWantedBackWhileItIsGrantedIsFencedBeforeAnybodyHearsOfIt) {
  Donor donor = GrantingDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("stop granting 1"));
  donor.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));
}

TEST(DonorTest, WhatIsNotGrantedAsItIsWantedBackSaysWhatForAndIsNotFenced) {
  Donor donor = GrantingDonor();
  donor.Revoke(kId, "own need", kStart);
  donor.GrantFailed(kId, "it is not lent any more", kStart);
  const std::vector<Donor::Action> actions = donor.TakeActions();
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<Donor::StopGranting>(actions[0]));
  EXPECT_TRUE(std::holds_alternative<Donor::TakeBack>(actions[1]));
  EXPECT_EQ(std::get<Donor::Say>(actions[2]).why, "own need");
}

TEST(DonorTest, ADrainingDonorWantsEverythingBackAndLendsNoMore) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  donor.Offered(MakeLease(2, 70), kStart);
  donor.TakeActions();
  donor.RevokeAll("drain", kStart);
  donor.Cleared(kv::LeaseId(2), true, kStart);
  donor.Offered(MakeLease(3, 50), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "stop clearing 2", "take 2", "RELEASED 2", "RELEASED 3"));
}

TEST(DonorTest, AnEngineThatEndsGivesTimeUnlessItNeedsTheMemoryItself) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  donor.RevokeAll("the engine ends", kStart, absl::Seconds(5));
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 5s"));
  EXPECT_EQ(donor.NextDeadline(), kStart + absl::Seconds(5));
  const absl::Time need = kStart + absl::Seconds(1);
  donor.Hasten(1, need);
  donor.Hasten(1, need + kDeadline / 2);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
  EXPECT_EQ(donor.NextDeadline(), need + kDeadline);
  donor.Tick(need + kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

// A broker that restarted, or called this engine dead, lends on as before once it is told.
TEST(DonorTest, ABrokerThatDoesNotKnowALeaseIsToldOfItAgain) {
  for (auto make : {GrantedDonor, ActiveDonor, RevokingDonor}) {
    Donor donor = make();
    donor.OnLeaseSnapshot(donor.Held(), kStart);
    EXPECT_THAT(Take(donor), IsEmpty());
    donor.OnLeaseSnapshot({}, kStart);
    EXPECT_THAT(Take(donor), ElementsAre("GRANTED 1 epoch 7"));
    EXPECT_THAT(donor.Given(), SizeIs(1));
  }
}

TEST(DonorTest, WhatASnapshotSaysOfALeaseIsDone) {
  Donor donor = ActiveDonor();
  std::vector<Lease> leases = donor.Held();
  leases.at(0).state = State::kRevoking;
  donor.OnLeaseSnapshot(leases, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
}

TEST(DonorTest, ATtlCountsFromTheOpening) {
  Donor donor = GrantedDonor();
  donor.BorrowerOpened(kId, kStart + kTtl / 2);
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl / 2 + kTtl);
}

TEST(DonorTest, AnOfferThatTheBrokerWithdrewIsNotGranted) {
  Donor clearing = ClearingDonor();
  clearing.OnLeaseSnapshot({}, kStart);
  EXPECT_THAT(Take(clearing), ElementsAre("stop clearing 1"));
  Donor granting = GrantingDonor();
  granting.OnLeaseSnapshot({}, kStart);
  granting.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(granting), ElementsAre("stop granting 1", "fence 1", "take 1", "RELEASED 1"));
}

TEST(DonorTest, WhatTheBrokerRefusesIsTakenBack) {
  Donor donor = ActiveDonor();
  donor.Refused(kId, "it shares a block with lease 2", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
  EXPECT_THAT(donor.Held(), SizeIs(1));
  donor.BorrowerReleased(kId, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));
}

TEST(DonorTest, OnlyWhatWasGrantedIsGiven) {
  EXPECT_THAT(ClearingDonor().Given(), IsEmpty());
  EXPECT_THAT(GrantingDonor().Given(), IsEmpty());
  for (auto make : {GrantedDonor, ActiveDonor, RevokingDonor}) {
    ASSERT_THAT(make().Given(), SizeIs(1));
    EXPECT_EQ(make().Given()[0].state, State::kGranted);
  }
}

TEST(DonorTest, ALateOfferDoesNotBringALeaseBack) {
  Donor donor = ActiveDonor();
  donor.BorrowerReleased(kId, kStart);
  donor.TakeActions();
  donor.Offered(MakeLease(1), kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
}

Lease LeaseIn(State state) {
  Lease lease = MakeLease(1);
  lease.state = state;
  return lease;
}

TEST(DonorTest, WatchLeadsThroughTheLifeOfALease) {
  Donor donor = NewDonor();
  donor.OnLeaseUpdate(LeaseIn(State::kOffered), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("clear 1"));
  donor = ActiveDonor();
  donor.OnLeaseUpdate(LeaseIn(State::kGranted), kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.OnLeaseUpdate(LeaseIn(State::kRevoking), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
}

TEST(DonorTest, ALeaseThatTheBrokerEndedLivesOnAndIsSaidToBeGrantedAgain) {
  for (State state : {State::kReleased, State::kFenced}) {
    Donor donor = ActiveDonor();
    donor.OnLeaseUpdate(LeaseIn(state), kStart);
    EXPECT_THAT(Take(donor), ElementsAre("GRANTED 1 epoch 7"));
  }
}

TEST(DonorTest, ALeaseThatOnlyTheBrokerBelievesInIsReportedReleased) {
  for (State state : {State::kGranted, State::kRevoking}) {
    Donor donor = NewDonor();
    donor.OnLeaseUpdate(LeaseIn(state), kStart);
    EXPECT_THAT(Take(donor), ElementsAre("RELEASED 1"));
  }
}

TEST(DonorTest, LeasesOfOthersInWatchAreNotOurs) {
  Donor donor = NewDonor();
  Lease lease = LeaseIn(State::kRevoking);
  lease.donor_instance = "summer-0";
  donor.OnLeaseUpdate(lease, kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
}

}  // namespace
}  // namespace swiftcache::engine::lease
