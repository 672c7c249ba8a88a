// SPDX-License-Identifier: Apache-2.0
// Whose leases are taken back: for a donor's scale-up, an operator, a limit or another's fair share.
#include "broker/elastic/fair_share.h"
#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Scale-up.

TEST_F(LedgerTest, ScaleUpNamesTheInnermostLeasesThatCoverTheNeed) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const std::vector<Lease> leases = Request("chat", 50).leases;
  Activate(leases);
  const auto order = ledger_->ScaleUp(PartyOf("code"), 11, now_);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(*order, ElementsAre(leases[4].id, leases[3].id));
  EXPECT_EQ(*ledger_->ScaleUp(PartyOf("code"), 11, now_), *order);
  EXPECT_THAT(*ledger_->ScaleUp(PartyOf("code"), 1000, now_), SizeIs(5));
  EXPECT_THAT(*ledger_->ScaleUp(PartyOf("chat"), 1, now_), IsEmpty());
}

TEST_F(LedgerTest, ScaleUpCountsWhatIsAlreadyUnderWay) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const std::vector<Lease> leases = Request("chat", 50).leases;
  Activate(leases);
  ASSERT_TRUE(ledger_->RevokeLease(leases[0].id, now_).ok());
  EXPECT_THAT(*ledger_->ScaleUp(PartyOf("code"), 11, now_), ElementsAre(leases[0].id, leases[4].id));
}

TEST_F(LedgerTest, ScaleUpTakesFromTheBorrowerThatHasMostForItsWeight) {
  AddEngine(EngineOf("rich"), {}, kBlocks);
  AddEngine(EngineOf("poor"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const std::vector<Lease> poors = Request("poor", 10).leases;  // outermost
  const std::vector<Lease> riches = Request("rich", 30).leases;
  const std::vector<Lease> innermost = Request("poor", 10).leases;
  for (const auto& leases : {poors, riches, innermost}) Activate(leases);
  const auto order = *ledger_->ScaleUp(PartyOf("code"), 40, now_);
  EXPECT_THAT(order, ElementsAre(riches[2].id, innermost[0].id, riches[1].id, riches[0].id));
}

// What a donor goes by that hears of ScaleUp too late.
TEST_F(LedgerTest, ADonorIsToldHowItsBorrowersWeighWhereItHasAChoice) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("poor"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("chat", 10).leases);
  EXPECT_THAT(ledger_->WeightsFor(PartyOf("code"), now_), IsEmpty()) << "there is one";
  Activate(Request("poor", 1000, 5000).leases);
  const auto weights = [this] {
    std::vector<int64_t> weights;  // of chat and poor, as they came
    for (const BorrowerWeight& borrower : ledger_->WeightsFor(PartyOf("code"), now_))
      weights.push_back(borrower.weight);
    return weights;
  };
  EXPECT_THAT(weights(), ElementsAre(elastic::kBaseWeightTokens, elastic::kBaseWeightTokens + 5000));
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("chat"), {}, now_).ok());
  now_ += absl::Hours(1);  // no request is open
  EXPECT_THAT(weights(), ElementsAre(1, elastic::kBaseWeightTokens)) << "chat only caches";
  EXPECT_THAT(ledger_->WeightsFor(PartyOf("chat"), now_), IsEmpty()) << "it lends nothing";
  EXPECT_THAT(ledger_->WeightsFor(PartyOf("nobody"), now_), IsEmpty());
}

TEST_F(LedgerTest, SoManyWeightsAreToldAndNoMore) {
  AddEngine(EngineOf("code"));
  for (int i = 0; i < 70; ++i) {
    const std::string name = absl::StrCat("chat", i);
    AddEngine(EngineOf(name), {}, kBlocks);
    Activate(Request(name, 1).leases);
  }
  EXPECT_THAT(ledger_->WeightsFor(PartyOf("code"), now_), SizeIs(TakingBack::kMaxWeights));
}

// Operators.

TEST_F(LedgerTest, AnOperatorsRevokeIsAskedOfTheDonor) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ledger_->TakeChanges();
  EXPECT_TRUE(ledger_->RevokeLease(lease.id, now_).ok());
  EXPECT_TRUE(ledger_->RevokeLease(lease.id, now_).ok());
  EXPECT_THAT(StatesOf(lease.id), ElementsAre(LeaseState::kRevoking));
  EXPECT_EQ(Current(lease.id).revoke_reason, RevokeReason::kOperator);
  ASSERT_TRUE(Report("code", lease.id, LeaseState::kReleased).ok());
  EXPECT_EQ(ledger_->RevokeLease(lease.id, now_).code(), absl::StatusCode::kNotFound);
}

TEST_F(LedgerTest, AnOfferThatIsRevokedWhileItsDonorAcceptsKeepsItsEpochAndEndsByTheDonorsWord) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  ASSERT_TRUE(ledger_->RevokeLease(id, now_).ok());
  ASSERT_TRUE(Report("code", id, LeaseState::kGranted, 5).ok());
  EXPECT_EQ(Current(id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(id).epoch, Epoch(5));
  now_ += absl::Hours(1);
  ledger_->Tick(now_);
  EXPECT_TRUE(Known(id)) << "the donor has granted it: only its word ends it";
  ASSERT_TRUE(Report("code", id, LeaseState::kFenced).ok());
}

TEST_F(LedgerTest, ALimitRevokesTheNewestLeasesOverItAndBoundsNewOnes) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const std::vector<Lease> leases = Request("chat", 30).leases;
  Activate(leases);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", 15 * kBlock, now_).ok());
  EXPECT_EQ(Current(leases[0].id).state, LeaseState::kGranted);
  EXPECT_EQ(Current(leases[1].id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(leases[2].id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(leases[0].id).revoke_reason, std::nullopt);
  EXPECT_EQ(Current(leases[1].id).revoke_reason, RevokeReason::kLimit);
  ASSERT_TRUE(ledger_->RevokeLease(leases[1].id, now_).ok());
  EXPECT_EQ(Current(leases[1].id).revoke_reason, RevokeReason::kLimit) << "the first reason stands";
  const LeaseResponse refused = Request("chat", 10);
  EXPECT_THAT(refused.leases, IsEmpty());
  EXPECT_THAT(refused.shortage, HasSubstr("limit on model 'chat-model'"));
  ASSERT_TRUE(Report("code", leases[1].id, LeaseState::kReleased).ok());
  ASSERT_TRUE(Report("code", leases[2].id, LeaseState::kReleased).ok());
  EXPECT_EQ(TotalBlocks(Request("chat", 10).leases), 5);
  EXPECT_EQ(ledger_->LimitLease("chat-model", -1, now_).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", std::nullopt, now_).ok());
  EXPECT_EQ(TotalBlocks(Request("chat", 10).leases), 10);
}

// A limit goes from broker to broker with the engines, some of which have not heard of its last change.
TEST_F(LedgerTest, TheYoungerOfTwoLimitsCountsAndALiftedOneIsRemembered) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  now_ = absl::FromUnixSeconds(1000);
  const LeaseLimit old = *ledger_->LimitLease("chat-model", 5 * kBlock, now_);
  const LeaseLimit lifted = *ledger_->LimitLease("chat-model", std::nullopt, now_);
  EXPECT_GT(lifted.set_at_micros, old.set_at_micros);
  const LeaseLimit set = *ledger_->LimitLease("code-model", 7, now_);
  EXPECT_THAT(ledger_->limits(), ElementsAre(lifted, set));

  Restart(2);
  EXPECT_TRUE(ledger_->LearnLimit(old));
  EXPECT_TRUE(ledger_->LearnLimit(lifted));
  EXPECT_FALSE(ledger_->LearnLimit(lifted));
  EXPECT_FALSE(ledger_->LearnLimit(old));
  LeaseLimit bad = set;
  bad.max_borrowed_bytes = -1;
  EXPECT_FALSE(ledger_->LearnLimit(bad));
  EXPECT_THAT(ledger_->limits(), ElementsAre(lifted));
  const LeaseLimit again = *ledger_->LimitLease("chat-model", 1, absl::UnixEpoch());
  EXPECT_GT(again.set_at_micros, lifted.set_at_micros) << "whatever this broker's clock says";
}

// Each process's clock runs on from what the wall clock showed when it started, whatever that was set to since.
TEST_F(LedgerTest, LimitsOfTwoBrokersAreComparedByTheWallClock) {
  Options ahead = TestOptions();  // it started when the wall clock was an hour ahead
  ahead.wall_time = [](absl::Time time) { return time - absl::Hours(1); };
  Restart(1, ahead);
  now_ = absl::FromUnixSeconds(10'000);
  const LeaseLimit old = *ledger_->LimitLease("chat-model", 5 * kBlock, now_ + absl::Hours(1));
  Restart(2);
  const LeaseLimit young = *ledger_->LimitLease("chat-model", 7 * kBlock, now_ + absl::Seconds(1));
  EXPECT_FALSE(ledger_->LearnLimit(old)) << "from an engine that comes late";
  EXPECT_THAT(ledger_->limits(), ElementsAre(young));
}

TEST_F(LedgerTest, ALimitHoldsWhileADonorHasNotComeBack) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("late"));
  const Lease lease = Active("chat", 10);
  const LeaseLimit limit = *ledger_->LimitLease("chat-model", 15 * kBlock, now_);
  Restart(2);
  ledger_->LearnLimit(limit);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const auto answer = ledger_->RequestLease(
      PartyOf("chat"), {.key = "k", .want_bytes = 100 * kBlock, .held_bytes = lease.num_bytes}, now_);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(TotalBlocks(answer->leases), 5);
  AddEngine(EngineOf("late"), {lease});
  EXPECT_EQ(Current(lease.id), lease) << "nothing is over the limit, so nothing ends";
}

// Fairness.

TEST_F(LedgerTest, WhoComesSecondGetsItsShareBack) {
  AddEngine(EngineOf("first"), {}, kBlocks);
  AddEngine(EngineOf("second"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("first", 1000, 4000).leases);
  EXPECT_EQ(BlocksOf("first"), 160);
  now_ += absl::Seconds(2);
  const LeaseResponse waits = Request("second", 1000, 4000);
  EXPECT_THAT(waits.leases, IsEmpty());
  EXPECT_THAT(waits.shortage, HasSubstr("being taken back"));
  EXPECT_EQ(waits.coming_bytes, 80 * kBlock);
  EXPECT_EQ(BlocksOf("first"), 80);
  for (const Lease& lease : ledger_->Snapshot()) {
    if (lease.state != LeaseState::kRevoking) continue;
    EXPECT_EQ(lease.revoke_reason, RevokeReason::kFairness);
    ASSERT_TRUE(Report("code", lease.id, LeaseState::kReleased).ok());
  }
  const LeaseResponse first_again = Request("first", 1000, 4000);
  EXPECT_THAT(first_again.leases, IsEmpty()) << "the room is the other's";
  EXPECT_EQ(TotalBlocks(Request("second", 1000, 4000).leases), 80);
}

// An engine that lends nothing yet asks for memory itself while its own is full.
TEST_F(LedgerTest, AClaimOfADonorTakesNothingOfWhatItLends) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  EXPECT_THAT(Request("code", 40).leases, IsEmpty());
  EXPECT_EQ(TotalBlocks(Request("chat", 1000).leases), 160);
}

TEST_F(LedgerTest, ADonorsClaimOnTheMemoryOfOthersCounts) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  for (const char* name : {"code", "small"}) AddEngine(EngineOf(name));
  Activate(Request("chat", 160).leases);  // half of what each has
  const LeaseResponse answer = Request("code", 100);
  EXPECT_EQ(TotalBlocks(answer.leases), 80);
  Activate(answer.leases);
  EXPECT_EQ(TotalBlocks(Request("chat", 1000).leases), 60) << "of the pool of 320 the other may have 100";
}

TEST_F(LedgerTest, WhatAnIdleBorrowerHadAskedForWeighsNoMore) {
  AddEngine(EngineOf("idle"), {}, kBlocks);
  AddEngine(EngineOf("busy"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("idle", 1000, /*waiting_tokens=*/50000).leases);
  now_ += absl::Seconds(2);
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("idle"), {}, now_).ok());  // whoever asked there has left
  (void)Request("busy", 1000, /*waiting_tokens=*/4000);
  EXPECT_EQ(BlocksOf("idle"), 10);
}

TEST_F(LedgerTest, WhatWasOfferedToWhoHasLeftIsOfferedToOthersAtOnce) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("other"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseResponse offered = Request("chat", 10);
  ledger_->RemoveEngine("chat", now_);
  ASSERT_EQ(Report("code", offered.leases.at(0).id, LeaseState::kReleased), absl::OkStatus());
  EXPECT_EQ(TotalBlocks(Request("other", kBlocks).leases), kBlocks);
}

TEST_F(LedgerTest, MoreWaitingTokensWeighMore) {
  AddEngine(EngineOf("light"), {}, kBlocks);
  AddEngine(EngineOf("heavy"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("light", 1000, 0).leases);
  now_ += absl::Seconds(2);
  Request("heavy", 1000, 3 * 1024);  // weighs 4096 against 1024
  EXPECT_THAT(BlocksOf("light"), testing::AllOf(testing::Ge(32), testing::Lt(42)));
}

TEST_F(LedgerTest, YoungLeasesAndSmallDifferencesStayForPeaceSake) {
  AddEngine(EngineOf("first"), {}, kBlocks);
  AddEngine(EngineOf("second"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("first", 90).leases);
  Request("second", 1000);
  EXPECT_EQ(BlocksOf("first"), 90) << "younger than min_hold";
  now_ += absl::Seconds(2);
  Request("second", 1000);
  EXPECT_EQ(BlocksOf("first"), 90) << "the second has 70 of its share of 80";
}

// The young ones lie further in, and would go first.
TEST_F(LedgerTest, OfWhoHasMoreThanItsShareTheOldLeasesGo) {
  AddEngine(EngineOf("first"), {}, kBlocks);
  AddEngine(EngineOf("second"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("first", 90).leases);
  now_ += absl::Seconds(2);
  const std::vector<Lease> young = Request("first", 1000).leases;
  ASSERT_EQ(TotalBlocks(young), 70);
  Activate(young);
  Request("second", 1000);
  EXPECT_EQ(BlocksOf("first"), 80);
  for (const Lease& lease : young) EXPECT_EQ(Current(lease.id).state, LeaseState::kGranted) << lease.extent.first_block;
}

TEST_F(LedgerTest, WhatAnIdleBorrowerHasCachedYieldsToTokensThatWait) {
  AddEngine(EngineOf("idle"), {}, kBlocks);
  AddEngine(EngineOf("busy"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("idle", 40).leases);
  Activate(Request("busy", 120, 4000).leases);
  now_ += absl::Hours(1);
  Request("busy", 40, 4000);
  EXPECT_EQ(BlocksOf("idle"), 40) << "something runs on it, and the other has 3/4 of its share";
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("idle"), {.window_peak_blocks = kBlocks}, now_).ok());
  Request("busy", 40, 0);
  EXPECT_EQ(BlocksOf("idle"), 40) << "the other would only cache more";
  Request("busy", 30, 4000);
  EXPECT_EQ(BlocksOf("idle"), 10);
}

// What it lacks is less than a lease, and all is lent in such leases.
TEST_F(LedgerTest, WhoOnlyCachesYieldsAWholeLeaseToTokensThatLackAPartOfIt) {
  AddEngine(EngineOf("idle"), {}, kBlocks);
  AddEngine(EngineOf("busy"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Activate(Request("idle", 160).leases);
  now_ += absl::Hours(1);
  Request("busy", 4, 4000);
  EXPECT_EQ(BlocksOf("idle"), 160) << "something runs on it";
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("idle"), {.window_peak_blocks = kBlocks}, now_).ok());
  Request("busy", 4, 0);
  EXPECT_EQ(BlocksOf("idle"), 160) << "the other would only cache, too";
  EXPECT_EQ(Request("busy", 4, 4000).coming_bytes, 4 * kBlock);
  EXPECT_EQ(BlocksOf("idle"), 150);
  EXPECT_EQ(Request("busy", 4, 4000).coming_bytes, 4 * kBlock);
  EXPECT_EQ(BlocksOf("idle"), 150) << "that is on its way";
}

// Its blocks are too large for units of that arena; what it asks of nobody is no part of what others divide.
TEST_F(LedgerTest, WhoCanShareWithNoDonorHasNoClaimOnItsMemory) {
  Engine big = EngineOf("big");
  big.block_bytes = 12 * kBlock;
  AddEngine(big, {}, kBlocks);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  EXPECT_EQ(TotalBlocks(Request("big", kBlocks, 50000).leases), 0);
  EXPECT_EQ(TotalBlocks(Request("chat", kBlocks).leases), kBlocks);
}

}  // namespace
}  // namespace swiftcache::broker::ledger
