// SPDX-License-Identifier: Apache-2.0
// Which leases a donor takes back when it needs its memory, and how many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/lease/donor.h"
#include "tests/engine/lease/donor_harness.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DonorNeedTest, NeedTakesTheInnermostLeasesFirst) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 70));
  Lend(donor, MakeLease(3, 80));
  donor.NeedBack(11, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 20);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms", "revoke 3 in 50ms"));
}

TEST(DonorNeedTest, NeedTakesTheColdestLeasesFirstAsTheirBorrowerSaid) {
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

TEST(DonorNeedTest, ALeaseThatNobodyHasOpenedIsTheColdest) {
  Donor donor = NewDonor();
  donor.Offered(MakeLease(1, 90), kStart);
  donor.Cleared(kId, true, kStart);
  donor.Granted(kId, kv::Epoch(7), kStart);
  Lend(donor, MakeLease(2, 80));
  donor.Renewal(kv::LeaseId(2), 1, kStart);
  donor.TakeActions();
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));
}

// A lease of ten blocks.
Lease OfBorrower(const std::string& instance, int64_t id, int64_t first_block) {
  Lease lease = MakeLease(id, first_block);
  lease.borrower_instance = instance;
  return lease;
}

TEST(DonorNeedTest, ANeedWithoutAdviceTakesFirstFromWhoHasTheMost) {
  Donor donor = NewDonor();
  Lend(donor, OfBorrower("rich", 1, 90)), Lend(donor, OfBorrower("rich", 2, 80));
  Lend(donor, OfBorrower("poor", 3, 70));  // the last that came in
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
  donor.NeedBack(11, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 3 in 50ms")) << "now that they have the same";
}

TEST(DonorNeedTest, WithinOneNeedTooWhoHasTheMostGivesNext) {
  Donor donor = NewDonor();
  for (const auto& [id, at] : {std::pair(1, 90), {2, 80}, {3, 60}}) Lend(donor, OfBorrower("rich", id, at));
  for (const auto& [id, at] : {std::pair(4, 70), {5, 50}}) Lend(donor, OfBorrower("poor", id, at));
  donor.NeedBack(11, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 3 in 50ms", "revoke 5 in 50ms"));

  Donor equals = NewDonor();
  for (const auto& [id, at] : {std::pair(1, 90), {2, 80}, {3, 50}}) Lend(equals, OfBorrower("rich", id, at));
  for (const auto& [id, at] : {std::pair(4, 70), {5, 60}}) Lend(equals, OfBorrower("poor", id, at));
  equals.NeedBack(11, kStart);
  EXPECT_THAT(Take(equals), ElementsAre("revoke 3 in 50ms", "revoke 5 in 50ms")) << "the innermost of what is left";
}

TEST(DonorNeedTest, WhoGivesNextDoesNotDependOnHowHotItSaysItsLeasesAre) {
  Donor donor = NewDonor();
  Lend(donor, OfBorrower("loud", 1, 70)), Lend(donor, OfBorrower("quiet", 2, 80));
  donor.Renewal(kv::LeaseId(1), 1000, kStart);
  donor.Renewal(kv::LeaseId(2), 1, kStart);
  donor.TakeActions();
  donor.NeedBack(1, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms")) << "it is the innermost of equals";

  Donor of_two_each = NewDonor();
  Lend(of_two_each, OfBorrower("loud", 1, 70)), Lend(of_two_each, OfBorrower("loud", 2, 90));
  Lend(of_two_each, OfBorrower("quiet", 3, 80)), Lend(of_two_each, OfBorrower("quiet", 4, 85));
  of_two_each.Renewal(kv::LeaseId(2), 0, kStart);
  of_two_each.TakeActions();
  of_two_each.NeedBack(1, kStart);
  EXPECT_THAT(Take(of_two_each), ElementsAre("revoke 2 in 50ms")) << "whose innermost lease it is, not the coldest";
}

TEST(DonorNeedTest, TheBrokerSaysHowMuchFromWhomAndHeatWhichLeases) {
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

TEST(DonorNeedTest, NoMoreIsTakenThanWasAdvisedForAllTogether) {
  Donor donor = NewDonor();
  Lease large = MakeLease(1, 40, /*num_blocks=*/20);  // as much as both
  large.borrower_instance = "one";
  Lend(donor, large), Lend(donor, OfBorrower("one", 2, 80)), Lend(donor, OfBorrower("two", 3, 90));
  donor.Renewal(kv::LeaseId(1), 1, kStart);
  donor.TakeActions();
  donor.TakeAdvised({kv::LeaseId(2), kv::LeaseId(3)}, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
}

TEST(DonorNeedTest, NoBlockLessIsTakenThanWasAdvised) {
  Donor donor = NewDonor();
  for (const int64_t id : {1, 2}) {
    Lease lease = MakeLease(id, 90 + id, /*num_blocks=*/1);
    lease.borrower_instance = absl::StrCat("borrower-", id);
    Lend(donor, lease);
  }
  donor.TakeAdvised({kv::LeaseId(1), kv::LeaseId(2)}, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "revoke 2 in 50ms"));
}

TEST(DonorNeedTest, WhoWeighsMoreMayHaveMoreAndWhoIsNewWeighsAsMuchAsTheHeaviest) {
  for (const bool is_new : {false, true}) {
    Donor donor = NewDonor();
    donor.SetWeights({{"busy", 1000}, {is_new ? "another" : "light", 1}});
    for (const auto& [id, at] : {std::pair(1, 90), {2, 80}}) Lend(donor, OfBorrower("busy", id, at));
    Lend(donor, OfBorrower("light", 3, 70));
    donor.NeedBack(1, kStart);
    EXPECT_THAT(Take(donor), ElementsAre(is_new ? "revoke 2 in 50ms" : "revoke 3 in 50ms"));
  }
}

TEST(DonorNeedTest, ANeedWithoutAdviceGoesByTheWeightsThatTheBrokerSaidBefore) {
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

TEST(DonorNeedTest, ThereIsAChoiceWhereSeveralBorrowersHoldMoreThanIsNeeded) {
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

TEST(DonorNeedTest, WhatIsNotClearedYetBringsNothingBack) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  donor.Offered(MakeLease(2, 70), kStart);
  donor.TakeActions();
  EXPECT_EQ(donor.blocks_on_loan(), 10);
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
}

TEST(DonorNeedTest, WhatIsOnItsWayBackCountsForTheNeed) {
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

TEST(DonorNeedTest, ANeedHastensNoMoreThanItTakesInTheOrderInWhichLoansGo) {
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

TEST(DonorNeedTest, WhatHasTimeIsHastenedBeforeItCountsForANeed) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90)), Lend(donor, MakeLease(2, 80));
  donor.RevokeAll("the engine ends", kStart, absl::Seconds(5));
  donor.TakeActions();
  donor.NeedBack(10, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms"));
}

}  // namespace
}  // namespace swiftcache::engine::lease
