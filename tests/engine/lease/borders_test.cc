// SPDX-License-Identifier: Apache-2.0
// What lies just on a border, and what no other test would miss.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/lease/borrower.h"
#include "tests/engine/lease/donor_harness.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::IsEmpty;

TEST(LeaseTest, AnExtentLiesInAnArenaUpToItsLastBlock) {
  EXPECT_TRUE(LiesIn({0, 1}, 1));
  EXPECT_TRUE(LiesIn({90, 10}, 100));
  EXPECT_FALSE(LiesIn({91, 10}, 100));
  EXPECT_FALSE(LiesIn({-1, 1}, 100));
  EXPECT_FALSE(LiesIn({0, 0}, 100));
  EXPECT_FALSE(LiesIn({-5, -1}, 100));
  EXPECT_FALSE(LiesIn({0, 101}, 100));
  EXPECT_FALSE(LiesIn({-INT64_MAX, INT64_MAX}, 100));
  EXPECT_FALSE(LiesIn({INT64_MAX, 1}, 100));
}

TEST(LeaseTest, NeighboursDoNotOverlap) {
  EXPECT_FALSE(Overlap({0, 10}, {10, 10}));
  EXPECT_FALSE(Overlap({10, 10}, {0, 10}));
  EXPECT_TRUE(Overlap({0, 11}, {10, 10}));
  EXPECT_TRUE(Overlap({10, 10}, {0, 11}));
}

TEST(AccountsTest, EachBeginningAndEachEndIsAChange) {
  Accounts accounts;
  accounts.Begin("chat", 100, kStart);
  EXPECT_EQ(accounts.changes(), 1);
  accounts.Advance(kStart + absl::Seconds(1));
  EXPECT_EQ(accounts.changes(), 1);
  accounts.End("chat", 100, Ending::kNeed, /*fenced=*/false, kStart + absl::Seconds(2));
  EXPECT_EQ(accounts.changes(), 2);
  const Account::Ended ended{.released = 5, .fenced = 3};
  EXPECT_EQ(ended.all(), 8);
}

TEST(DonorTest, WhatNobodyExpectsIsIgnoredAndCounted) {
  Donor donor = ClearingDonor();
  donor.Renewal(kId, 0, kStart);
  EXPECT_EQ(donor.ignored(), 1);
  donor.Offered(MakeLease(1), kStart);
  EXPECT_EQ(donor.ignored(), 2);
  donor.Revoke(kId, "first", kStart);
  EXPECT_EQ(donor.ignored(), 2);
  EXPECT_THAT(Take(donor), ::testing::ElementsAre("stop clearing 1"));
  donor.Revoke(kId, "again", kStart);
  EXPECT_EQ(donor.ignored(), 3);
  EXPECT_THAT(Take(donor), IsEmpty());
}

TEST(BorrowerTest, WhatNobodyExpectsIsIgnoredAndCounted) {
  Borrower borrower({.instance_id = "chat-1", .block_bytes = 8192, .ttl = kTtl});
  borrower.Renewed(kId, kStart);
  borrower.Revoked(kId, absl::Milliseconds(50), kStart);
  EXPECT_EQ(borrower.ignored(), 2);
  EXPECT_TRUE(borrower.TakeActions().empty());
}

Lease LeaseForChat() {
  Lease lease = MakeLease(1);
  lease.state = State::kGranted;
  lease.epoch = kv::Epoch(7);
  return lease;
}

Borrower ActiveBorrower() {
  Borrower borrower({.instance_id = "chat-1", .block_bytes = 8192, .ttl = kTtl, .drain = absl::Seconds(2)});
  borrower.Granted(LeaseForChat(), kStart);
  borrower.Opened(kId, true, kStart);
  borrower.TakeActions();
  return borrower;
}

TEST(BorrowerTest, WhatNoStepReadsIsHeldNoMoreAndHasNoDeadline) {
  Borrower borrower = ActiveBorrower();
  borrower.Revoked(kId, absl::Milliseconds(50), kStart);
  EXPECT_TRUE(borrower.any_held());
  borrower.TakeActions();
  borrower.Unread(kv::LeaseId(2), kStart);  // of which it knows nothing
  borrower.Unread(kId, kStart);
  EXPECT_FALSE(borrower.any_held());
  borrower.Tick(kStart + absl::Hours(1));
  EXPECT_TRUE(borrower.TakeActions().empty());
  borrower.Dropped(kId, kStart + absl::Hours(1));
  const std::vector<Borrower::Action> actions = borrower.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Borrower::Close>(actions[0]));
}

TEST(BorrowerTest, LeasesOfASilentDonorHaveTheOrdinaryTimeToDrain) {
  Borrower borrower = ActiveBorrower();
  borrower.DonorSilent(kId, kStart);
  const std::vector<Borrower::Action> actions = borrower.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Borrower::Drain>(actions[0]).until, kStart + absl::Seconds(2));
}

TEST(DonorTest, TheReasonOfARevocationIsThatOfTheEnd) {
  Donor donor = ClearingDonor();
  donor.Revoke(kId, "because", kStart);
  donor.Cleared(kId, false, kStart);
  const std::vector<Donor::Action> actions = donor.TakeActions();
  ASSERT_FALSE(actions.empty());
  EXPECT_EQ(std::get<Donor::Say>(actions.back()).why, "because");
}

TEST(BorrowerTest, WhoseDonorAnswersNoMoreHasTheOrdinaryTimeToDrainToo) {
  Borrower borrower = ActiveBorrower();
  borrower.Tick(kStart + kTtl);
  const std::vector<Borrower::Action> actions = borrower.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Borrower::Drain>(actions[0]).until, kStart + kTtl + absl::Seconds(2));
}

TEST(DonorTest, AnEndWithoutABorrowerSaysWhetherThereWasOne) {
  for (auto& [donor, why] : std::vector<std::pair<Donor, std::string>>{
           {GrantedDonor(), "its borrower never opened it"}, {ActiveDonor(), "its borrower stopped renewing"}}) {
    donor.Tick(kStart + kTtl);
    const std::vector<Donor::Action> actions = donor.TakeActions();
    ASSERT_FALSE(actions.empty());
    EXPECT_EQ(std::get<Donor::Say>(actions.back()).why, why);
  }
}

// By which late ones are counted.
absl::Time DeadlineOfReturn(Donor& donor) {
  for (const Donor::Action& action : donor.TakeActions()) {
    if (const auto* back = std::get_if<Donor::TakeBack>(&action)) return back->deadline;
  }
  return absl::InfinitePast();
}

TEST(DonorTest, MemoryIsDueWhenItsBorrowerWasToldAndNeverWhereItWasNotReadyToBeLent) {
  Donor clearing = ClearingDonor();
  clearing.Revoke(kId, "own need", kStart);
  clearing.Cleared(kId, true, kStart + absl::Seconds(5));
  EXPECT_EQ(DeadlineOfReturn(clearing), absl::InfiniteFuture());

  Donor granting = GrantingDonor();
  granting.Revoke(kId, "own need", kStart);
  granting.Granted(kId, kv::Epoch(7), kStart + absl::Milliseconds(1));
  EXPECT_EQ(DeadlineOfReturn(granting), kStart + kDeadline);

  Donor active = ActiveDonor();
  active.RevokeAll("the engine ends", kStart, absl::Milliseconds(700));
  active.BorrowerReleased(kId, kStart + absl::Milliseconds(1));
  EXPECT_EQ(DeadlineOfReturn(active), kStart + absl::Milliseconds(700));
}

}  // namespace
}  // namespace swiftcache::engine::lease
