// SPDX-License-Identifier: Apache-2.0
// What a new broker learns of leases from those who hold them, and what they may claim.
#include <cstdint>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LedgerRestartTest : public LedgerTest {
 protected:
  void SetUp() override {
    AddEngine(EngineOf("chat"), {}, kBlocks);
    AddEngine(EngineOf("code"));
    lease_ = Active("chat", 10);
    Restart(2);
  }
  Lease lease_;
};

TEST_F(LedgerRestartTest, TheTableIsRebuiltFromWhatDonorsGiveWhetherOrNotTheirBorrowersCome) {
  for (const bool borrower_first : {false, true}) {
    Restart(3);
    if (borrower_first) ledger_->AddEngine(EngineOf("chat"), {}, now_);
    ledger_->AddEngine(EngineOf("code"), {lease_}, now_);
    now_ += absl::Hours(1);
    ledger_->Tick(now_);
    if (!borrower_first) ledger_->AddEngine(EngineOf("chat"), {}, now_);
    EXPECT_EQ(Current(lease_.id), lease_);
    EXPECT_THAT(StatesOf(lease_.id), ElementsAre(LeaseState::kGranted));
    EXPECT_EQ(ledger_->BorrowedBytes("chat-model"), lease_.num_bytes);
  }
}

TEST_F(LedgerRestartTest, ABorrowersClaimIsNone) {
  ledger_->AddEngine(EngineOf("chat"), {lease_}, now_);
  ledger_->AddEngine(EngineOf("code"), {}, now_);
  EXPECT_THAT(ledger_->TakeChanges(), IsEmpty());
  EXPECT_THAT(ledger_->Snapshot(), IsEmpty());
}

TEST_F(LedgerRestartTest, ADonorsWordEntersALeaseThatTheBrokerDoesNotKnow) {
  ledger_->AddEngine(EngineOf("code"), {}, now_);
  ledger_->AddEngine(EngineOf("chat"), {}, now_);
  EXPECT_TRUE(Say(lease_).ok());
  EXPECT_EQ(Current(lease_.id), lease_);
}

TEST_F(LedgerRestartTest, ADonorCannotClaimOneExtentTwice) {
  Lease twin = lease_;
  twin.id = LeaseId(77);
  twin.extent.first_block -= 5;
  ledger_->AddEngine(EngineOf("code"), {lease_, twin}, now_);
  EXPECT_TRUE(Known(lease_.id));
  EXPECT_FALSE(Known(twin.id));
  EXPECT_EQ(Say(twin).code(), absl::StatusCode::kFailedPrecondition) << "and hears why";
}

TEST_F(LedgerRestartTest, ClaimsThatCannotBeAreRefused) {
  const auto expect_refused = [&](const char* what, auto change) {
    Restart(3);
    Lease bad = lease_;
    change(bad);
    ledger_->AddEngine(EngineOf("code"), {bad}, now_);
    EXPECT_THAT(ledger_->Snapshot(), IsEmpty()) << what;
    const absl::Status status = ledger_->ReportLease(PartyOf("code"), bad, now_);
    EXPECT_TRUE(HasEnded(bad.state) || absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(ledger_->Snapshot(), IsEmpty()) << what;
    ExpectSound();
  };
  expect_refused("beyond the arena", [](Lease& l) { l.extent.first_block = kBlocks - 1; });
  expect_refused("negative", [](Lease& l) { l.extent.first_block = -10; });
  expect_refused("wraps", [](Lease& l) { l.extent.num_blocks = INT64_MAX; });
  expect_refused("bytes", [](Lease& l) { ++l.num_bytes; });
  expect_refused("no epoch", [](Lease& l) { l.epoch.reset(); });
  expect_refused("to itself", [](Lease& l) { l.borrower = l.donor; });
  expect_refused("no model", [](Lease& l) { l.borrower_model.clear(); });
  expect_refused("no capability", [](Lease& l) { l.capability.clear(); });
  expect_refused("an offer", [](Lease& l) { l.state = LeaseState::kOffered; });
  expect_refused("an end", [](Lease& l) { l.state = LeaseState::kFenced; });
  expect_refused("no id", [](Lease& l) { l.id = LeaseId(0); });
  expect_refused("somebody else's", [](Lease& l) { l.donor = PartyOf("x"); });
  // Watchers are told of it, the log and the metrics.
  expect_refused("a borrower of any name", [](Lease& l) { l.borrower.name = "chat\nforged"; });
  expect_refused("of any instance", [](Lease& l) { l.borrower.instance_id = std::string(129, 'i'); });
  expect_refused("of any model", [](Lease& l) { l.borrower_model = "chat model"; });
  expect_refused("a channel that is not its donor's", [](Lease& l) { l.channel = "/run/x"; });
  expect_refused("a capability of any length", [](Lease& l) { l.capability = std::string(129, 'c'); });
}

TEST_F(LedgerRestartTest, NewIdsDifferFromThoseOfEarlierBrokers) {
  ledger_->AddEngine(EngineOf("code"), {lease_}, now_);
  AddEngine(EngineOf("code"), {lease_});
  AddEngine(EngineOf("chat"), {lease_}, kBlocks);
  const Lease next = Request("chat", 10).leases.at(0);
  EXPECT_NE(next.id, lease_.id);
  EXPECT_GT(next.id.value(), 0);
  EXPECT_FALSE(next.extent.Overlaps(lease_.extent));
}

TEST_F(LedgerTest, AnEngineThatRegistersAgainSaysWhatItGives) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease kept = Active("chat", 10), dropped = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->AddEngine(EngineOf("code"), {kept}, now_);
  EXPECT_EQ(Current(kept.id), kept);
  EXPECT_FALSE(Known(dropped.id)) << "its owner does not know it";
  EXPECT_TRUE(Known(offer)) << "it may not have heard of it yet";
}

TEST_F(LedgerTest, AClaimOfALostAcceptanceIsTheAcceptance) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Lease lease = Request("chat", 10).leases.at(0);
  lease.state = LeaseState::kGranted;
  lease.epoch = Epoch(3);
  ledger_->AddEngine(EngineOf("code"), {lease}, now_);
  EXPECT_EQ(Current(lease.id), lease);
}

}  // namespace
}  // namespace swiftcache::broker::ledger
