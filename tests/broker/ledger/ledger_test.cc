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

TEST_F(LedgerTest, WhatWasOfferedBeforeIsStillToCome) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseResponse all = Request("chat", 160);
  EXPECT_EQ(all.lendable_bytes, 0);
  EXPECT_EQ(Request("chat", 20).lendable_bytes, 160 * kBlock);
  Activate(all.leases);
  for (const int64_t held : {0, 100, 160, 200}) {
    const auto answer = ledger_->RequestLease(
        PartyOf("chat"), {.key = absl::StrCat("holds ", held), .want_bytes = kBlock, .held_bytes = held * kBlock},
        now_);
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->lendable_bytes, std::max<int64_t>(0, 160 - held) * kBlock) << "granted, and not heard of by it";
  }
  const LeaseRequest again = {.key = "holds 0", .want_bytes = kBlock, .held_bytes = 0};
  EXPECT_EQ(ledger_->RequestLease(PartyOf("chat"), again, now_)->lendable_bytes, 160 * kBlock) << "asked again";
  now_ += absl::Seconds(1);
  EXPECT_EQ(ledger_->RequestLease(PartyOf("chat"), again, now_)->lendable_bytes, 0) << "it could not open them";
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

TEST_F(LedgerTest, AReserveIsNeverLentHoweverIdleItIs) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  Engine code = EngineOf("code");
  code.never_lent_blocks = 125;
  AddEngine(code);
  LeaseResponse answer = Request("chat", 50);
  EXPECT_EQ(TotalBlocks(answer.leases), kBlocks - 125);
  for (const Lease& lease : answer.leases) EXPECT_GE(lease.extent.first_block, 125);
  EXPECT_EQ(answer.lendable_bytes, 0);
  EXPECT_THAT(answer.shortage, HasSubstr("donors have no more"));
  EXPECT_THAT(Request("chat", 1).leases, IsEmpty());
}

TEST_F(LedgerTest, AnEngineWhoseReserveIsAllItHasIsNoDonor) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  Engine code = EngineOf("code");
  code.never_lent_blocks = kBlocks;
  AddEngine(code);
  const LeaseResponse answer = Request("chat", 1);
  EXPECT_THAT(answer.leases, IsEmpty());
  EXPECT_THAT(answer.shortage, HasSubstr("no other engine of node 'node' lends memory"));
}

TEST_F(LedgerTest, ALeaseLivesFromItsOfferToItsRelease) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  ASSERT_TRUE(Report("code", id, LeaseState::kGranted, 7).ok());
  EXPECT_EQ(Current(id).epoch, Epoch(7));
  ASSERT_TRUE(Report("code", id, LeaseState::kReleased).ok());
  EXPECT_THAT(StatesOf(id), ElementsAre(LeaseState::kOffered, LeaseState::kGranted, LeaseState::kReleased));
  EXPECT_TRUE(Report("code", id, LeaseState::kReleased).ok()) << "of a lease that has ended: nothing is new";
  EXPECT_EQ(ledger_->NextDeadline(), absl::InfiniteFuture());
}

TEST_F(LedgerTest, ADonorMayFenceAloneAndReportItLater) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ASSERT_TRUE(Report("code", lease.id, LeaseState::kFenced).ok());
  EXPECT_FALSE(Known(lease.id));
}

TEST_F(LedgerTest, ARepeatedWordIsOkAndALeaseIsGrantedOnce) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_EQ(Report("code", id, LeaseState::kOffered).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Report("code", id, LeaseState::kRevoking).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Report("code", id, LeaseState::kGranted).ok());
  EXPECT_TRUE(Report("code", id, LeaseState::kGranted).ok());
  EXPECT_EQ(Report("code", id, LeaseState::kGranted, 9).code(), absl::StatusCode::kFailedPrecondition);
  Lease other = Current(id);
  --other.extent.first_block;
  EXPECT_EQ(Say(other).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(ledger_->RevokeLease(id, now_).ok());
  EXPECT_TRUE(Report("code", id, LeaseState::kGranted).ok()) << "they crossed";
  EXPECT_EQ(Current(id).state, LeaseState::kRevoking);
}

// A report may be repeated after its time; its donor hears of the lease by Watch, and says RELEASED again.
TEST_F(LedgerTest, ALateCopyOfAGrantEntersTheLeaseAgainUntilItsDonorIsHeard) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ASSERT_TRUE(Report("code", lease.id, LeaseState::kReleased).ok());
  EXPECT_TRUE(Say(lease).ok());
  EXPECT_EQ(Current(lease.id), lease);
  ASSERT_TRUE(Report("code", lease.id, LeaseState::kReleased).ok());
  EXPECT_FALSE(Known(lease.id));
}

TEST_F(LedgerTest, OnlyTheDonorSpeaksOfALease) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  AddEngine(EngineOf("other"), {}, kBlocks);
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_EQ(Report("chat", id, LeaseState::kGranted).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("other", id, LeaseState::kReleased).code(), absl::StatusCode::kPermissionDenied);
  Lease stolen = Current(id);
  stolen.donor = PartyOf("other");
  stolen.state = LeaseState::kReleased;
  EXPECT_EQ(Say(stolen).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("nobody", id, LeaseState::kGranted).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ReportLease(PartyOf("code", "i2"), {.id = id}, now_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LedgerTest, ARetriedRequestNeverLeasesTwice) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const LeaseResponse first = Request("chat", 25, 0, "same");
  const LeaseResponse second = Request("chat", 25, 0, "same");
  EXPECT_EQ(second.leases, first.leases);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(3));
  ASSERT_TRUE(Report("code", first.leases[0].id, LeaseState::kReleased).ok());
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
  ASSERT_TRUE(Report("code", declined.id, LeaseState::kReleased).ok());
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
}

TEST_F(LedgerTest, ADonorThatAcceptsTooLateHasGrantedAllTheSame) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  Lease late = Request("chat", 10).leases.at(0);
  now_ += absl::Seconds(3);
  ledger_->Tick(now_);
  ASSERT_FALSE(Known(late.id));
  const LeaseId next = Request("chat", 160).leases.back().id;  // of all that is left; the extent was just declined
  now_ += absl::Seconds(2);
  const LeaseId same = Request("chat", 10).leases.at(0).id;
  ASSERT_EQ(Current(same).extent, late.extent);
  late.state = LeaseState::kGranted;
  late.epoch = Epoch(3);
  EXPECT_TRUE(Say(late).ok());
  EXPECT_EQ(Current(late.id), late);
  EXPECT_FALSE(Known(same)) << "an offer of what its owner has lent";
  EXPECT_TRUE(Known(next));
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

TEST_F(LedgerTest, ASmallDonorOfTheSameNodeIsAskedBesideALargeOneOfAnother) {
  Engine large = EngineOf("large"), small = EngineOf("small");
  large.node_id = "other";
  large.num_blocks = 100 * kBlocks;
  small.num_blocks = 20;
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(large);
  AddEngine(small);
  const LeaseResponse answer = Request("chat", 10);
  ASSERT_THAT(answer.leases, SizeIs(1));
  EXPECT_EQ(answer.leases[0].donor.name, "small");
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
    return ledger_->ReportWindow(PartyOf("chat"), demand, now_).code();
  };
  EXPECT_EQ(window({.used_blocks = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(window({.window_peak_blocks = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(window({.used_blocks = kBlocks, .waiting_blocks = 10 * kBlocks}), absl::StatusCode::kOk);
  EXPECT_EQ(ledger_->ReportWindow(PartyOf("x"), {}, now_).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ScaleUp(PartyOf("x"), 1, now_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ScaleUp(PartyOf("chat"), 0, now_).status().code(), absl::StatusCode::kInvalidArgument);
}

// And a broker that has restarted may not know of all that it borrows.
TEST_F(LedgerTest, WhoBorrowsMayUseMoreThanItOwns) {
  AddEngine(EngineOf("chat"), {}, kBlocks + 10);
  AddEngine(EngineOf("code"), {}, kBlocks);
  EXPECT_THAT(Request("code", 1).leases, IsEmpty());
}

// Death and departure.

TEST_F(LedgerTest, ADonorThatCannotBeSeenIsForgottenAndBringsItsLeasesBack) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->TakeChanges();
  ledger_->RemoveEngine("code", now_);
  EXPECT_FALSE(Known(lease.id));
  EXPECT_FALSE(Known(offer));
  EXPECT_THAT(StatesOf(lease.id), ElementsAre(LeaseState::kReleased));
  ledger_->AddEngine(EngineOf("code"), {lease}, now_);
  EXPECT_EQ(Current(lease.id), lease);
}

// It may be there, and only the broker not see it. Its donor sees whether it is.
TEST_F(LedgerTest, LeasesOfABorrowerThatCannotBeSeenLiveAndOffersToItDoNot) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->RemoveEngine("chat", now_);
  EXPECT_EQ(Current(lease.id), lease);
  EXPECT_EQ(Current(offer).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(offer).revoke_reason, RevokeReason::kBorrowerGone);
  now_ += absl::Hours(1);  // the offer was never accepted
  ledger_->Tick(now_);
  EXPECT_THAT(ledger_->Snapshot(), ElementsAre(lease));
  AddEngine(EngineOf("chat"), {}, kBlocks);
  EXPECT_EQ(Current(lease.id), lease);
}

TEST_F(LedgerTest, WhatABorrowerNeverSawThatTookItsLeaveIsAskedBack) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ledger_->RemoveEngine("chat", now_, /*in_order=*/true);
  EXPECT_EQ(Current(lease.id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(lease.id).revoke_reason, RevokeReason::kBorrowerGone);
}

TEST_F(LedgerTest, ANewInstanceOfTheSameNameHasNothingOfTheOld) {
  AddEngine(EngineOf("chat"), {}, kBlocks);
  AddEngine(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ledger_->AddEngine(EngineOf("chat", "i2"), {}, now_);
  EXPECT_THAT(ledger_->LeasesOf("i2"), IsEmpty());
  EXPECT_EQ(ledger_->BorrowedBytes("chat-model"), lease.num_bytes) << "until its donor says that it has ended";
  ledger_->AddEngine(EngineOf("code", "i2"), {}, now_);
  EXPECT_FALSE(Known(lease.id));
}

}  // namespace
}  // namespace swiftcache::broker::ledger
