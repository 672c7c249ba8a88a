// SPDX-License-Identifier: Apache-2.0
// Who is not here (it has not registered again with a new broker, or cannot reach this one) keeps what it holds.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::SizeIs;

class LedgerAbsenceTest : public LedgerTest {
 protected:
  /// A new broker, to which only `donor` has come, with what it gives.
  void RestartWith(const Engine& donor, int64_t used = 0) {
    std::vector<Lease> given;
    for (const Lease& lease : ledger_->Snapshot()) {
      if (lease.donor == donor.party) given.push_back(lease);
    }
    Restart(++prefix_);
    AddEngine(donor, given, used);
  }
  /// "late" holds 100 blocks of "code", which has 60 more; the broker restarts, or loses "late". "chat" works.
  void LoseLate(bool restart) {
    Restart(++prefix_);
    AddEngine(EngineOf("code"));
    AddEngine(EngineOf("late"), {}, kBlocks);
    Activate(Request("late", 100, 4000).leases);
    ASSERT_EQ(BlocksOf("late"), 100);
    if (restart) {
      RestartWith(EngineOf("code"));
    } else {
      ledger_->RemoveEngine("late", now_);
    }
    AddEngine(EngineOf("chat"), {}, kBlocks);
    now_ += absl::Seconds(10);
  }
  LeaseResponse RequestHolding(const Party& borrower, int64_t blocks, int64_t held_bytes) {
    const auto answer = ledger_->RequestLease(
        borrower, {.key = "holds", .want_bytes = blocks * kBlock, .held_bytes = held_bytes}, now_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : LeaseResponse{};
  }
  LeaseResponse RequestHolding(const std::string& borrower, int64_t blocks, int64_t held_bytes) {
    return RequestHolding(PartyOf(borrower), blocks, held_bytes);
  }
  /// Another takes its name while the broker does not see it.
  void Rename(Engine& engine, const std::string& name) {
    ledger_->RemoveEngine(engine.party.name, now_);
    engine.party.name = name;
    AddEngine(engine, {}, kBlocks);
  }
  uint32_t prefix_ = 1;
};

TEST_F(LedgerAbsenceTest, WhatABorrowerHoldsThatIsNotHereIsNotDivided) {
  for (const bool restart : {true, false}) {
    SCOPED_TRACE(restart);
    LoseLate(restart);
    EXPECT_EQ(TotalBlocks(Request("chat", 160, /*waiting_tokens=*/5000).leases), 60) << "all that nobody holds";
    EXPECT_EQ(BlocksOf("late"), 100);
    Request("chat", 100, 5000);
    EXPECT_EQ(BlocksOf("late"), 100);
  }
}

TEST_F(LedgerAbsenceTest, WhoComesBackHasTimeToSayWhatItNeedsAndThenSharesAsOthersDo) {
  LoseLate(/*restart=*/true);
  ledger_->AddEngine(EngineOf("late"), {}, now_);
  Request("chat", 160, 5000);
  EXPECT_EQ(BlocksOf("late"), 100) << "it was here for less than min_hold";
  now_ += TestOptions().min_hold - absl::Milliseconds(1);
  ledger_->AddEngine(EngineOf("late"), {}, now_);  // it was here before
  Request("chat", 160, 5000);
  EXPECT_EQ(BlocksOf("late"), 100);
  now_ += absl::Milliseconds(1);
  Request("chat", 160, 5000);
  EXPECT_LT(BlocksOf("late"), 100);
}

TEST_F(LedgerAbsenceTest, WhatComesBackFromABorrowerThatIsNotHereIsNotTakenFromOthersToo) {
  LoseLate(/*restart=*/true);
  Activate(Request("chat", 60).leases);
  for (const Lease& lease : ledger_->Snapshot()) {
    if (lease.borrower.name == "late") {
      EXPECT_TRUE(ledger_->RevokeLease(lease.id, now_).ok());
    }
  }
  AddEngine(EngineOf("new"), {}, kBlocks);
  now_ += absl::Seconds(10);
  Request("new", 80);
  EXPECT_EQ(BlocksOf("chat"), 60) << "100 are on their way";
}

TEST_F(LedgerAbsenceTest, ADonorsOwnNeedIsAnsweredWhoeverIsNotHere) {
  LoseLate(/*restart=*/true);
  EXPECT_THAT(*ledger_->ScaleUp(PartyOf("code"), kBlocks, now_), SizeIs(10));
}

// As Donor::WeightOf has it.
TEST_F(LedgerAbsenceTest, InANeedWhoIsNotHereWeighsAsTheHeaviestThatIs) {
  LoseLate(/*restart=*/true);
  AddEngine(EngineOf("idle"), {}, kBlocks);
  const std::vector<Lease> chats = Request("chat", 40, 5000).leases;
  Activate(chats);
  const std::vector<Lease> idles = Request("idle", 10).leases;
  Activate(idles);
  ASSERT_TRUE(ledger_->ReportWindow(PartyOf("idle"), {}, now_).ok());
  now_ += TestOptions().request_ttl - absl::Milliseconds(1);
  Request("chat", 10, 5000);  // an offer
  now_ += absl::Milliseconds(1);
  const auto borrowers = [&](int64_t need_blocks) {
    std::vector<std::string> names;
    const std::vector<LeaseId> order = *ledger_->ScaleUp(PartyOf("code"), need_blocks, now_);
    for (const LeaseId id : order) names.push_back(Current(id).borrower.name);
    return names;
  };
  EXPECT_THAT(borrowers(20), ElementsAre("idle", "late")) << "one only caches; of the others one has more";
  EXPECT_THAT(borrowers(60), ElementsAre("idle", "late", "late", "late", "late", "late"));
}

// "chat" holds 80 blocks of "away", "other" as many of "code": each has its share.
TEST_F(LedgerAbsenceTest, WhatABorrowerHoldsOfADonorThatIsNotHereCountsAsHeld) {
  AddEngine(EngineOf("away"), {}, kBlocks / 2);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  Activate(Request("chat", 80).leases);
  AddEngine(EngineOf("code"), {}, kBlocks / 2);
  AddEngine(EngineOf("other"), {}, kBlocks);
  Activate(Request("other", 80).leases);
  ASSERT_EQ(BlocksOf("other"), 80);

  RestartWith(EngineOf("code"), kBlocks / 2);
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("other"), {}, kBlocks);
  now_ += absl::Seconds(10);
  RequestHolding("chat", 80, 80 * kBlock);
  EXPECT_EQ(BlocksOf("other"), 80);
}

TEST_F(LedgerAbsenceTest, WhoeverSaysThatItHoldsMoreThanThereIsGetsNothingAndHarmsNobody) {
  AddEngine(EngineOf("code"));
  AddEngine(EngineOf("other"), {}, kBlocks);
  Activate(Request("other", 100).leases);
  AddEngine(EngineOf("mad"), {}, kBlocks);
  now_ += absl::Seconds(10);
  ASSERT_TRUE(ledger_->LimitLease("mad-model", INT64_MAX, now_).ok());
  RequestHolding("mad", 160, INT64_MAX);
  EXPECT_EQ(BlocksOf("other"), 100);
}

// Limits.

TEST_F(LedgerAbsenceTest, ALimitCountsWhatABorrowerHoldsThatIsNotHere) {
  Engine late = EngineOf("late"), chat = EngineOf("chat");
  late.model_name = chat.model_name = "model";
  AddEngine(EngineOf("code"));
  AddEngine(late, {}, kBlocks);
  const Lease lease = Active("late", 10);
  const LeaseLimit limit = *ledger_->LimitLease("model", 15 * kBlock, now_);
  RestartWith(EngineOf("code"));
  ledger_->LearnLimit(limit);
  AddEngine(chat, {}, kBlocks);
  EXPECT_EQ(ledger_->BorrowedBytes("model"), 10 * kBlock);
  const LeaseResponse answer = Request("chat", 100);
  EXPECT_EQ(TotalBlocks(answer.leases), 5);
  Activate(answer.leases);
  AddEngine(late, {}, kBlocks);
  EXPECT_EQ(Current(lease.id), lease);
  EXPECT_THAT(ledger_->Snapshot(), Each(Field(&Lease::state, LeaseState::kGranted))) << "nothing is over the limit";
}

TEST_F(LedgerAbsenceTest, WhatABorrowerHoldsByTheNameThatItHadIsWithinItsLimitOnce) {
  AddEngine(EngineOf("code"));
  Engine chat = EngineOf("chat", "i2");
  AddEngine(chat, {}, kBlocks);
  Activate(RequestHolding(chat.party, 40, 0).leases);
  ASSERT_TRUE(ledger_->LimitLease(chat.model_name, 60 * kBlock, now_).ok());
  Rename(chat, "chat-2");
  EXPECT_EQ(TotalBlocks(RequestHolding(chat.party, 50, 40 * kBlock).leases), 20);
}

TEST_F(LedgerAbsenceTest, WhatWasOfferedByTheNameThatItHadIsNothingThatABorrowerHolds) {
  AddEngine(EngineOf("code"));
  Engine chat = EngineOf("chat", "i2");
  AddEngine(chat, {}, kBlocks);
  ASSERT_EQ(TotalBlocks(RequestHolding(chat.party, 10, 0).leases), 10);
  ASSERT_TRUE(ledger_->LimitLease(chat.model_name, 60 * kBlock, now_).ok());
  Rename(chat, "chat-2");
  EXPECT_EQ(TotalBlocks(RequestHolding(chat.party, 50, 10 * kBlock).leases), 40)
      << "10 are held of a donor that is not here, and 10 were offered";
}

TEST_F(LedgerAbsenceTest, ANewLimitTakesFromABorrowerThatIsNotHereToo) {
  LoseLate(/*restart=*/true);
  ASSERT_TRUE(ledger_->LimitLease("late-model", 30 * kBlock, now_).ok());
  EXPECT_EQ(BlocksOf("late"), 30);
}

TEST_F(LedgerAbsenceTest, ALeaseThatADonorBringsIsWithinTheLimitOrGoesBack) {
  LoseLate(/*restart=*/true);
  const std::vector<Lease> given = ledger_->Snapshot();
  Restart(++prefix_);
  ASSERT_TRUE(ledger_->LimitLease("late-model", 30 * kBlock, now_).ok());
  AddEngine(EngineOf("code"), given);
  EXPECT_EQ(BlocksOf("late"), 30);
}

}  // namespace
}  // namespace swiftcache::broker::ledger
