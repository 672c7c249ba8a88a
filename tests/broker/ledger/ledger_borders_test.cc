// SPDX-License-Identifier: Apache-2.0
// What lies just on a border, and what no other test would miss.
#include <functional>
#include <string>
#include <vector>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(LedgerTest, WhateverIsAskedFirstEndsOffersThatWereNotAnswered) {
  const auto calls = std::vector<std::function<void(LeaseId)>>{
      [&](LeaseId) { ledger_->AddEngine(EngineOf("new"), {}, now_); },
      [&](LeaseId) { ledger_->RemoveEngine("nobody", now_); },
      [&](LeaseId) { EXPECT_TRUE(ledger_->LimitLease("model", 1, now_).ok()); },
      [&](LeaseId id) { EXPECT_EQ(ledger_->RevokeLease(id, now_).code(), absl::StatusCode::kNotFound); },
      [&](LeaseId) { Request("chat", 1); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    Restart(1);
    AddEngine(EngineOf("chat"), {}, kBlocks);
    AddEngine(EngineOf("code"));
    const LeaseId offer = Request("chat", 10).leases.at(0).id;
    now_ += TestOptions().offer_timeout;
    calls[i](offer);
    EXPECT_FALSE(Known(offer)) << i;
  }
}

// It has most to lend, and does not hear of it: its Watch is broken, or its loop hangs.
TEST_F(LedgerTest, WhoDoesNotAnswerAnOfferIsAskedAfterAllOthersForAMoment) {
  Engine other = EngineOf("other");
  other.num_blocks = kBlocks / 2;
  for (const Engine& engine : {EngineOf("deaf"), other}) AddEngine(engine);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  EXPECT_EQ(Request("chat", 5).leases.at(0).donor.name, "deaf");
  now_ += absl::Seconds(3);
  EXPECT_EQ(Request("chat", 5).leases.at(0).donor.name, "other");
  EXPECT_EQ(Request("chat", kBlocks).leases.back().donor.name, "deaf") << "nobody else has more";
  now_ += absl::Seconds(2);
  EXPECT_EQ(Request("chat", 5).leases.at(0).donor.name, "deaf");
}

TEST_F(LedgerTest, WhoAnswersOfferByOfferIsNotSilent) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const std::vector<Lease> offers = Request("chat", kBlocks).leases;
  ASSERT_THAT(offers, SizeIs(16));
  now_ += absl::Seconds(2);
  Activate({offers.begin(), offers.begin() + 8});
  now_ += absl::Milliseconds(2999);
  ledger_->Tick(now_);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(16));
  now_ += absl::Milliseconds(1);
  ledger_->Tick(now_);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(8));
}

TEST_F(LedgerTest, AKeyMayHave128Bytes) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  EXPECT_THAT(Request("chat", 1, 0, std::string(128, 'k')).leases, SizeIs(1));
  EXPECT_EQ(
      ledger_->RequestLease(PartyOf("chat"), {.key = std::string(129, 'k'), .want_bytes = 1}, now_).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(LedgerTest, ARepeatedRequestHearsWhatCouldStillBeLent) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseResponse first = Request("chat", 10, 0, "key"), again = Request("chat", 10, 0, "key");
  EXPECT_EQ(first.lendable_bytes, (kBlocks - 10) * kBlock);
  EXPECT_EQ(again.lendable_bytes, first.lendable_bytes);
}

TEST_F(LedgerTest, OnlyTheLastRequestsAreRemembered) {
  Options options = TestOptions();
  options.max_remembered_requests = 2;
  Restart(1, options);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const std::vector<Lease> a = Request("chat", 1, 0, "a").leases, b = Request("chat", 1, 0, "b").leases;
  EXPECT_EQ(Request("chat", 1, 0, "a").leases, a);
  Request("chat", 1, 0, "c");
  EXPECT_EQ(Request("chat", 1, 0, "b").leases, b);
  EXPECT_NE(Request("chat", 1, 0, "a").leases, a) << "a new one";
}

TEST_F(LedgerTest, AnArenasFirstBlockAndASingleOneCanBeOnLease) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  EXPECT_EQ(Say(LeaseOfBlock(0, "chat")), absl::OkStatus());
}

TEST_F(LedgerTest, ADonorOnTheLimitOfLeasesOffersNoMore) {
  std::vector<Lease> given;
  Engine code = EngineOf("code");
  code.num_blocks = 2 * static_cast<int64_t>(kMaxLeasesPerSide);
  for (int64_t i = 0; i < static_cast<int64_t>(kMaxLeasesPerSide); ++i) given.push_back(LeaseOfBlock(i, "elsewhere"));
  AddEngine(code, given);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  EXPECT_THAT(Request("chat", 1).leases, IsEmpty());
  ASSERT_EQ(Report("code", LeaseId(1), LeaseState::kReleased, 1), absl::OkStatus());
  EXPECT_THAT(Request("chat", 1000).leases, SizeIs(1)) << "one has room now";
}

// The newest lies at the arena's end here, so that its place does not say it.
TEST_F(LedgerTest, ALimitTakesTheNewestWhereverItLiesAndNoMoreThanItMust) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease end = Active("chat", 10), old = Active("chat", 10);
  ASSERT_EQ(Report("code", end.id, LeaseState::kReleased), absl::OkStatus());
  const Lease newest = Active("chat", 10);
  ASSERT_GT(newest.extent.first_block, old.extent.first_block);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", 10 * kBlock, now_).ok());
  EXPECT_EQ(Current(newest.id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(old.id).state, LeaseState::kGranted);
}

TEST_F(LedgerTest, ALimitOfTheLastMomentThereIsCanStillBeReplaced) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  ASSERT_TRUE(ledger_->LearnLimit({.model_name = "chat-model", .max_borrowed_bytes = 5, .set_at_micros = INT64_MAX}));
  EXPECT_EQ(ledger_->LimitLease("chat-model", 7, now_)->max_borrowed_bytes, 7);
}

// The offer is in its donor's use: 5 of 140 blocks are missing, which one of two leases covers.
TEST_F(LedgerTest, ScaleUpTakesAnOfferForMemoryThatIsThere) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Active("chat", 10);
  const Lease inner = Active("chat", 10);
  ASSERT_THAT(Request("chat", 10).leases, SizeIs(1));
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("code"), {.used_blocks = 145}, now_).ok());
  EXPECT_THAT(*ledger_->ScaleUp(PartyOf("code"), 1, now_), ElementsAre(inner.id));
}

// Whoever has said nothing yet may have work: only what is known to be idle yields without being above its share.
TEST_F(LedgerTest, WhoHasNotReportedYetDoesNotOnlyCache) {
  AddEngine(EngineOf("code"));
  ledger_->AddEngine(EngineOf("quiet"), {}, now_);
  const std::vector<Lease> held = Request("quiet", 100).leases;
  Activate(held);
  now_ += absl::Seconds(10);  // its request is over, its leases are ripe
  AddEngine(EngineOf("chat"), {}, kBlocks);
  Request("chat", 70, /*waiting_tokens=*/100);
  EXPECT_EQ(BlocksOf("quiet"), 100) << "it works";
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("quiet"), {.window_peak_blocks = kBlocks}, now_).ok());
  Request("chat", 70, /*waiting_tokens=*/100);
  EXPECT_LT(BlocksOf("quiet"), 100) << "it is idle, and yields";
}

// At three quarters of its share a borrower is not starved: what others use stays theirs.
TEST_F(LedgerTest, WhatItGetsNowCountsAgainstStarving) {
  AddEngine(EngineOf("code"));
  AddEngine(EngineOf("rich"), {}, kBlocks);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  const std::vector<Lease> riches = Request("rich", 100).leases;
  Activate(riches);
  now_ += absl::Seconds(10);
  Request("chat", 160);  // 60 are free, its share is 80: just three quarters
  EXPECT_EQ(BlocksOf("chat"), 60);
  EXPECT_EQ(BlocksOf("rich"), 100);
}

TEST_F(LedgerTest, AShortageIsTheLimitsOnlyWhereTheLimitIsLessThanTheShare) {
  AddEngine(EngineOf("code"));
  AddEngine(EngineOf("chat"), {}, kBlocks);
  Active("chat", 10);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", 30 * kBlock, now_).ok());
  EXPECT_THAT(Request("chat", 40).shortage, HasSubstr("limit on model"));
  Restart(2);
  AddEngine(EngineOf("code"));
  AddEngine(EngineOf("chat"), {}, kBlocks);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", 200 * kBlock, now_).ok());
  const LeaseResponse most = Request("chat", 100);
  Activate(most.leases);
  // 100 are left by the limit, 60 by the share.
  const std::string shortage = Request("chat", 300).shortage;
  EXPECT_THAT(shortage, HasSubstr("the share of chat"));
}

}  // namespace
}  // namespace swiftcache::broker::ledger
