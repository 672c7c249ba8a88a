// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/ledger.h"

#include <set>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(LedgerTest, ARequestIsOfferedFromTheTailOfAnArenaInSmallLeases) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseResponse answer = Request("chat", 25);
  ASSERT_THAT(answer.leases, SizeIs(3));
  EXPECT_EQ(answer.leases[0].extent, (Extent{150, 10}));
  EXPECT_EQ(answer.leases[1].extent, (Extent{140, 10}));
  EXPECT_EQ(answer.leases[2].extent, (Extent{135, 5}));
  EXPECT_EQ(answer.shortage, "");
  EXPECT_EQ(answer.lendable_bytes, 135 * kBlock);
  std::set<std::string> capabilities;
  for (const Lease& lease : answer.leases) {
    EXPECT_EQ(lease.donor, PartyOf("code"));
    EXPECT_EQ(lease.borrower, PartyOf("chat"));
    EXPECT_EQ(lease.channel, "/run/code");
    EXPECT_EQ(lease.state, LeaseState::kOffered);
    EXPECT_EQ(lease.epoch, std::nullopt);
    EXPECT_EQ(lease.num_bytes, lease.extent.num_blocks * kBlock);
    EXPECT_EQ(lease.borrower_blocks, lease.extent.num_blocks);
    capabilities.insert(lease.capability);
  }
  EXPECT_THAT(capabilities, SizeIs(3));
}

TEST_F(LedgerTest, BlocksOfOtherBytesAreReadAsWholeUnitsOnPageBorders) {
  Engine code = EngineOf("code");
  code.block_bytes = 13'824;  // tiny-llama-b: 8 blocks are the least that end on a page
  code.num_blocks = 1285;
  Engine chat = EngineOf("chat");
  chat.block_bytes = 368'640;
  AddEngine(chat, {}, kBlocks);
  AddEngine(code);
  Restart(1, {.elastic = {.headroom_percent = 0}});
  AddEngine(chat, {}, kBlocks);
  AddEngine(code);
  const auto answer = ledger_->RequestLease(chat.party, {.key = "k", .want_bytes = 4 * 368'640}, now_);
  ASSERT_TRUE(answer.ok());
  ASSERT_THAT(answer->leases, SizeIs(1));
  EXPECT_EQ(answer->leases[0].extent, (Extent{1280 - 160, 160}));  // two units of 80; the 5 at the end are no page
  EXPECT_EQ(answer->leases[0].borrower_blocks, 6);
  EXPECT_EQ(answer->leases[0].extent.first_block * 13'824 % 4096, 0);
}

TEST_F(LedgerTest, ALeaseLivesFromItsOfferToItsRelease) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_THAT(StatesOf(id), ElementsAre(LeaseState::kOffered));
  ASSERT_TRUE(Report("code", id, ReportKind::kAccepted, 42).ok());
  EXPECT_EQ(Current(id).epoch, Epoch(42));
  ASSERT_TRUE(Report("chat", id, ReportKind::kActive).ok());
  ASSERT_TRUE(Report("code", id, ReportKind::kRevoking).ok());
  ASSERT_TRUE(Report("code", id, ReportKind::kReleased).ok());
  EXPECT_THAT(StatesOf(id),
              ElementsAre(LeaseState::kGranted, LeaseState::kActive, LeaseState::kRevoking, LeaseState::kReleased));
  EXPECT_FALSE(Known(id));
  EXPECT_EQ(Report("code", id, ReportKind::kReleased).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ledger_->NextDeadline(), std::nullopt);
}

TEST_F(LedgerTest, ADonorMayFenceAloneAndReportItLater) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ASSERT_TRUE(Report("code", lease.id, ReportKind::kFenced).ok());
  EXPECT_FALSE(Known(lease.id));
}

TEST_F(LedgerTest, ARepeatedReportIsOkAndAnIllegalOneNamesBothStates) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  const auto expect_refused = [&](const char* who, ReportKind kind, const char* from, const char* to) {
    const absl::Status status = Report(who, id, kind, 9);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << from << " to " << to;
    EXPECT_THAT(std::string(status.message()), HasSubstr(from));
    EXPECT_THAT(std::string(status.message()), HasSubstr(to));
  };
  expect_refused("chat", ReportKind::kActive, "offered", "active");
  expect_refused("code", ReportKind::kFenced, "offered", "fenced");
  expect_refused("chat", ReportKind::kLost, "offered", "lost");
  ASSERT_TRUE(Report("code", id, ReportKind::kAccepted).ok());
  EXPECT_TRUE(Report("code", id, ReportKind::kAccepted).ok());
  expect_refused("code", ReportKind::kAccepted, "granted", "granted");  // of another epoch
  expect_refused("code", ReportKind::kDeclined, "granted", "declined");
  ASSERT_TRUE(Report("chat", id, ReportKind::kActive).ok());
  EXPECT_TRUE(Report("chat", id, ReportKind::kActive).ok());
  EXPECT_TRUE(Report("code", id, ReportKind::kAccepted).ok());
  ASSERT_TRUE(Report("code", id, ReportKind::kRevoking).ok());
  EXPECT_TRUE(Report("code", id, ReportKind::kRevoking).ok());
  EXPECT_TRUE(Report("chat", id, ReportKind::kLost).ok());
  expect_refused("chat", ReportKind::kActive, "revoking", "active");
}

TEST_F(LedgerTest, OnlyTheRightSideReports) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  AddEngine(EngineOf("other"), {}, kBlocks);
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_EQ(Report("chat", id, ReportKind::kAccepted).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("other", id, ReportKind::kReleased).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("code", id, ReportKind::kActive).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("nobody", id, ReportKind::kAccepted).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ReportLease(PartyOf("code", "i2"), {.lease = id}, now_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LedgerTest, ARetriedRequestNeverLeasesTwice) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseResponse first = Request("chat", 25, 0, "same");
  const LeaseResponse second = Request("chat", 25, 0, "same");
  EXPECT_EQ(second.leases, first.leases);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(3));
  ASSERT_TRUE(Report("code", first.leases[0].id, ReportKind::kDeclined).ok());
  const LeaseResponse third = Request("chat", 25, 0, "same");
  EXPECT_THAT(third.leases, SizeIs(2));
  EXPECT_THAT(third.shortage, HasSubstr("have ended"));
  AddEngine(EngineOf("other"), {}, kBlocks);
  EXPECT_THAT(Request("other", 10, 0, "same").leases, SizeIs(1));  // keys are per instance
}

TEST_F(LedgerTest, ADeclinedExtentIsNotOfferedAgainForAMoment) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease declined = Request("chat", 10).leases.at(0);
  ASSERT_TRUE(Report("code", declined.id, ReportKind::kDeclined).ok());
  EXPECT_THAT(StatesOf(declined.id), ElementsAre(LeaseState::kOffered, LeaseState::kReleased));
  EXPECT_EQ(Request("chat", 10).leases.at(0).extent, (Extent{140, 10}));
  now_ += absl::Seconds(2);
  EXPECT_EQ(Request("chat", 10).leases.at(0).extent, declined.extent);
}

TEST_F(LedgerTest, AnOfferThatIsNotAnsweredEnds) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_EQ(ledger_->NextDeadline(), now_ + absl::Seconds(3));
  now_ += absl::Seconds(3);
  ledger_->Tick(now_);
  EXPECT_THAT(StatesOf(id), ElementsAre(LeaseState::kOffered, LeaseState::kReleased));
  EXPECT_EQ(Report("code", id, ReportKind::kAccepted).code(), absl::StatusCode::kNotFound);
}

TEST_F(LedgerTest, ABrokerThatSleptEndsNoOffer) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  ledger_->PostponeDeadlines(absl::Hours(1));
  now_ += absl::Hours(1);
  ledger_->Tick(now_);
  EXPECT_TRUE(Known(id));
}

TEST_F(LedgerTest, OnlyReadyEnginesOfTheSameNodeWithAChannelLend) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  Engine elsewhere = EngineOf("elsewhere"), alone = EngineOf("alone"), busy = EngineOf("busy");
  elsewhere.node_id = "other";
  alone.channel = "";
  busy.ready = false;
  for (const Engine& engine : {elsewhere, alone, busy}) AddEngine(engine);
  const LeaseResponse none = Request("chat", 10);
  EXPECT_THAT(none.leases, IsEmpty());
  EXPECT_THAT(none.shortage, HasSubstr("no other engine of node 'node'"));
  const auto shy = ledger_->RequestLease(alone.party, {.key = "k", .want_bytes = 1}, now_);
  EXPECT_THAT(shy->shortage, HasSubstr("no lease channel"));
  ledger_->SetReady("busy", true);
  EXPECT_EQ(Request("chat", 10).leases.at(0).donor.name, "busy");
  ledger_->SetReady("busy", false);
  EXPECT_THAT(Request("chat", 10).leases, IsEmpty());
}

TEST_F(LedgerTest, ADonorThatHasNotReportedLendsNothing) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  ledger_->AddEngine(EngineOf("code"), {}, now_);
  EXPECT_THAT(Request("chat", 10).leases, IsEmpty());
}

TEST_F(LedgerTest, APairWithoutAnElasticUnitIsRefusedWithTheReason) {
  Engine coarse = EngineOf("coarse");
  coarse.block_bytes = 13'824;
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(coarse);
  coarse.num_blocks = 20;
  AddEngine(coarse);
  const LeaseResponse answer = Request("chat", 10);
  EXPECT_THAT(answer.leases, IsEmpty());
  EXPECT_THAT(answer.shortage, HasSubstr("coarse: blocks of 13824"));
}

TEST_F(LedgerTest, SeveralDonorsShareTheBurden) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("a"), {}, kBlocks / 2);
  AddEngine(EngineOf("b"));
  const LeaseResponse answer = Request("chat", 160);
  EXPECT_EQ(TotalBlocks(answer.leases), 160);
  int64_t from_a = 0;
  for (const Lease& lease : answer.leases) from_a += lease.donor.name == "a" ? lease.extent.num_blocks : 0;
  EXPECT_EQ(from_a, 40);  // both have as much left
}

TEST_F(LedgerTest, NoMoreIsLentThanTheDonorCanMissAndTheAnswerSaysSo) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"), {}, 130);
  const LeaseResponse answer = Request("chat", 1000);
  EXPECT_EQ(TotalBlocks(answer.leases), 30);
  EXPECT_NE(answer.shortage, "");
  EXPECT_EQ(answer.lendable_bytes, 0);
  for (const Lease& lease : answer.leases) EXPECT_GE(lease.extent.first_block, 130);
}

TEST_F(LedgerTest, AnEngineMayLendAndBorrowAtOnce) {
  AddEngine(EngineOf("a"));
  AddEngine(EngineOf("b"));
  EXPECT_EQ(Active("a", 10).donor.name, "b");
  EXPECT_EQ(Active("b", 10).donor.name, "a");
}

TEST_F(LedgerTest, BadRequestsAreInvalid) {
  AddEngine(EngineOf("chat"));
  const auto code_of = [&](LeaseRequest request) {
    return ledger_->RequestLease(PartyOf("chat"), request, now_).status().code();
  };
  EXPECT_EQ(code_of({.key = "k", .want_bytes = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.key = "", .want_bytes = 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.key = "k", .want_bytes = 1, .waiting_tokens = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger_->RequestLease(PartyOf("chat", "i2"), {.key = "k", .want_bytes = 1}, now_).status().code(),
            absl::StatusCode::kUnavailable);
  const auto window = [&](const elastic::Demand& demand) {
    return ledger_->ReportWindow(PartyOf("chat"), demand, now_).status().code();
  };
  EXPECT_EQ(window({.used_blocks = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(window({.window_peak_blocks = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(window({.used_blocks = kBlocks + 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(window({.used_blocks = kBlocks, .waiting_blocks = 10 * kBlocks}), absl::StatusCode::kOk);
  EXPECT_EQ(ledger_->ReportWindow(PartyOf("x"), {}, now_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ScaleUp(PartyOf("x"), 1, now_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ScaleUp(PartyOf("chat"), 0, now_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LedgerTest, WhoBorrowsMayUseMoreThanItOwns) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Active("chat", 10);
  EXPECT_TRUE(ledger_->ReportWindow(PartyOf("chat"), {.used_blocks = kBlocks + 10}, now_).ok());
  EXPECT_FALSE(ledger_->ReportWindow(PartyOf("chat"), {.used_blocks = kBlocks + 11}, now_).ok());
}

// Death and departure.

TEST_F(LedgerTest, LeasesOfADeadDonorEnd) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->TakeChanges();
  ledger_->RemoveEngine("code", now_);
  EXPECT_FALSE(Known(lease.id));
  EXPECT_FALSE(Known(offer));
  EXPECT_THAT(StatesOf(lease.id), ElementsAre(LeaseState::kReleased));
}

TEST_F(LedgerTest, LeasesOfADeadBorrowerAreRevokedByTheirDonor) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->RemoveEngine("chat", now_);
  EXPECT_EQ(Current(lease.id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(offer).state, LeaseState::kRevoking);
  ASSERT_TRUE(Report("code", lease.id, ReportKind::kFenced).ok());
  now_ += absl::Seconds(3);  // the offer was never accepted
  ledger_->Tick(now_);
  EXPECT_THAT(ledger_->Snapshot(), IsEmpty());
}

TEST_F(LedgerTest, ANewInstanceOfTheSameNameHasNothingOfTheOld) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ledger_->AddEngine(EngineOf("chat", "i2"), {}, now_);
  EXPECT_EQ(Current(lease.id).state, LeaseState::kRevoking);
  ledger_->AddEngine(EngineOf("code", "i2"), {}, now_);
  EXPECT_FALSE(Known(lease.id));
}

}  // namespace
}  // namespace swiftcache::broker::ledger
