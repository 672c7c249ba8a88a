// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/donor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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
  EXPECT_EQ(std::get<Donor::TakeBack>(actions[1]).after_revoke, absl::Milliseconds(3));
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
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
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
  donor.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));
}

TEST(DonorTest, NeedTakesTheInnermostLeasesFirst) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 70));
  Lend(donor, MakeLease(3, 80));
  donor.NeedBack(11, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 20);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms", "revoke 3 in 50ms"));
}

TEST(DonorTest, NeedTakesTheColdestLeasesFirstAsTheirBorrowerSaid) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90)), Lend(donor, MakeLease(2, 80)), Lend(donor, MakeLease(3, 70));
  donor.Renewal(kv::LeaseId(1), 100, kStart);
  donor.Renewal(kv::LeaseId(2), 200, kStart);
  donor.Renewal(kv::LeaseId(2), 50, kStart);
  donor.TakeActions();
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
  donor.NeedBack(11, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms")) << "of lease 3 nothing was said yet";
  Lend(donor, MakeLease(4, 60));
  donor.Renewal(kv::LeaseId(3), 70, kStart);
  donor.Renewal(kv::LeaseId(4), 70, kStart);
  donor.TakeActions();
  donor.NeedBack(21, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 4 in 50ms")) << "they are as cold";
}

TEST(DonorTest, ALeaseThatNobodyHasOpenedIsTheColdest) {
  Donor donor = NewDonor();
  donor.Offered(MakeLease(1, 90), kStart);
  donor.Cleared(kId, true, kStart);
  donor.Granted(kId, kv::Epoch(7), kStart);
  Lend(donor, MakeLease(2, 80));
  donor.Renewal(kv::LeaseId(2), 1, kStart);
  donor.TakeActions();
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

// A lease of ten blocks.
Lease OfBorrower(const std::string& instance, int64_t id, int64_t first_block) {
  Lease lease = MakeLease(id, first_block);
  lease.borrower_instance = instance;
  return lease;
}

TEST(DonorTest, ANeedWithoutAdviceTakesFirstFromWhoHasTheMost) {
  Donor donor = NewDonor();
  Lend(donor, OfBorrower("rich", 1, 90)), Lend(donor, OfBorrower("rich", 2, 80));
  Lend(donor, OfBorrower("poor", 3, 70));  // the last that came in
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
  donor.NeedBack(11, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 3 in 50ms")) << "now that they have the same";
}

TEST(DonorTest, WhoGivesNextDoesNotDependOnHowHotItSaysItsLeasesAre) {
  Donor donor = NewDonor();
  Lend(donor, OfBorrower("loud", 1, 70)), Lend(donor, OfBorrower("quiet", 2, 80));
  donor.Renewal(kv::LeaseId(1), 1000, kStart);
  donor.Renewal(kv::LeaseId(2), 1, kStart);
  donor.TakeActions();
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms")) << "it is the innermost of equals";
}

TEST(DonorTest, TheBrokerSaysHowMuchFromWhomAndHeatWhichLeases) {
  Donor donor = NewDonor();
  Lend(donor, OfBorrower("one", 1, 90)), Lend(donor, OfBorrower("one", 2, 80)), Lend(donor, OfBorrower("one", 3, 70));
  Lend(donor, OfBorrower("two", 4, 60)), Lend(donor, OfBorrower("two", 5, 50));
  for (int64_t id = 1; id <= 5; ++id) donor.Renewal(kv::LeaseId(id), id, kStart);
  donor.TakeActions();
  donor.TakeAdvised({kv::LeaseId(3), kv::LeaseId(5), kv::LeaseId(77)}, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "revoke 4 in 50ms"));
  donor.TakeAdvised({kv::LeaseId(3)}, kStart);
  EXPECT_THAT(Take(donor), IsEmpty()) << "as much is on its way back from there";
  donor.TakeAdvised({kv::LeaseId(1), kv::LeaseId(3)}, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
}

TEST(DonorTest, ANeedWithoutAdviceGoesByTheWeightsThatTheBrokerSaidBefore) {
  Donor donor = NewDonor();
  donor.SetWeights({{"busy", 1000}, {"idle", -1}});
  Lend(donor, OfBorrower("idle", 1, 90));
  Lend(donor, OfBorrower("busy", 2, 80)), Lend(donor, OfBorrower("busy", 3, 70));
  Lend(donor, OfBorrower("new", 4, 60));
  donor.NeedBack(10, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
  donor.NeedBack(20, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 3 in 50ms")) << "who is new weighs as much as anybody";
  donor.SetWeights({{"busy", 3}, {"new", 1}});
  donor.NeedBack(30, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 4 in 50ms"));
}

TEST(DonorTest, ThereIsAChoiceWhereSeveralBorrowersHoldMoreThanIsNeeded) {
  Donor donor = NewDonor();
  EXPECT_FALSE(donor.HasChoice(1));
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 80));
  EXPECT_FALSE(donor.HasChoice(1)) << "they are of one borrower";
  Lease other = MakeLease(3, 70);
  other.borrower_instance = "another";
  Lend(donor, other);
  EXPECT_TRUE(donor.HasChoice(1));
  EXPECT_TRUE(donor.HasChoice(29));
  EXPECT_FALSE(donor.HasChoice(30)) << "all of it is needed";
  donor.Revoke(kv::LeaseId(3), "own need", kStart);
  EXPECT_FALSE(donor.HasChoice(11)) << "what is not on its way back is of one borrower";
}

TEST(DonorTest, WhatIsNotClearedYetBringsNothingBack) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  donor.Offered(MakeLease(2, 70), kStart);
  donor.TakeActions();
  EXPECT_EQ(donor.blocks_on_loan(), 10);
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
}

TEST(DonorTest, WhatIsOnItsWayBackCountsForTheNeed) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 70));
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  donor.TakeActions();
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.NeedBack(100, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 20);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
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

TEST(DonorTest, ANeedHastensNoMoreThanItTakesInTheOrderInWhichLoansGo) {
  Donor donor = NewDonor();
  Lend(donor, OfBorrower("rich", 1, 90)), Lend(donor, OfBorrower("rich", 2, 80));
  Lend(donor, OfBorrower("poor", 3, 70));
  donor.RevokeAll("the engine ends", kStart, absl::Seconds(5));
  donor.TakeActions();
  const absl::Time need = kStart + absl::Seconds(1);
  donor.Hasten(0, need);
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.Hasten(10, need);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
  donor.Hasten(10, need + kDeadline / 2);
  EXPECT_THAT(Take(donor), IsEmpty()) << "that is due in time";
  donor.Hasten(11, need + kDeadline / 2);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 3 in 50ms"));
  donor.Tick(need + kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("fence 2", "take 2 fenced", "FENCED 2"));
  donor.Hasten(100, need + kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms")) << "all that there is";
  donor.Tick(kStart + absl::Seconds(5));
  EXPECT_THAT(donor.Held(), IsEmpty());
}

TEST(DonorTest, WhatHasTimeIsHastenedBeforeItCountsForANeed) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90)), Lend(donor, MakeLease(2, 80));
  donor.RevokeAll("the engine ends", kStart, absl::Seconds(5));
  donor.TakeActions();
  donor.NeedBack(10, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
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

TEST(DonorTest, AnOfferThatTheBrokerWithdrewIsNotGranted) {
  Donor clearing = ClearingDonor();
  clearing.OnLeaseSnapshot({}, kStart);
  EXPECT_THAT(Take(clearing), ElementsAre("stop clearing 1"));
  Donor granting = GrantingDonor();
  granting.OnLeaseSnapshot({}, kStart);
  granting.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(granting), ElementsAre("fence 1", "take 1", "RELEASED 1"));
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
