// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/ledger.h"

#include <limits>
#include <set>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(LedgerTest, ARequestIsOfferedFromTheTailOfAnArenaInSmallLeases) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Answer answer = Request("chat", 25);
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
  Enter(chat, {}, kBlocks);
  Enter(code);
  Restart(1, {.elastic = {.headroom_percent = 0}});
  Enter(chat, {}, kBlocks);
  Enter(code);
  const auto answer = ledger_->RequestLease(chat.party, {.key = "k", .want_bytes = 4 * 368'640}, now_);
  ASSERT_TRUE(answer.ok());
  ASSERT_THAT(answer->leases, SizeIs(1));
  EXPECT_EQ(answer->leases[0].extent, (Extent{1280 - 160, 160}));  // two units of 80; the 5 at the end are no page
  EXPECT_EQ(answer->leases[0].borrower_blocks, 6);
  EXPECT_EQ(answer->leases[0].extent.first_block * 13'824 % 4096, 0);
}

TEST_F(LedgerTest, ALeaseLivesFromItsOfferToItsRelease) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_THAT(Told(id), ElementsAre(LeaseState::kOffered));
  ASSERT_TRUE(Report("code", id, ReportKind::kAccepted, 42).ok());
  EXPECT_EQ(Current(id).epoch, Epoch(42));
  ASSERT_TRUE(Report("chat", id, ReportKind::kActive).ok());
  ASSERT_TRUE(Report("code", id, ReportKind::kRevoking).ok());
  ASSERT_TRUE(Report("code", id, ReportKind::kReleased).ok());
  EXPECT_THAT(Told(id),
              ElementsAre(LeaseState::kGranted, LeaseState::kActive, LeaseState::kRevoking, LeaseState::kReleased));
  EXPECT_FALSE(Known(id));
  EXPECT_EQ(Report("code", id, ReportKind::kReleased).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ledger_->NextDeadline(), std::nullopt);
}

TEST_F(LedgerTest, ADonorMayFenceAloneAndReportItLater) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ASSERT_TRUE(Report("code", lease.id, ReportKind::kFenced).ok());
  EXPECT_FALSE(Known(lease.id));
}

TEST_F(LedgerTest, ARepeatedReportIsOkAndAnIllegalOneNamesBothStates) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
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
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  Enter(EngineOf("other"), {}, kBlocks);
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_EQ(Report("chat", id, ReportKind::kAccepted).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("other", id, ReportKind::kReleased).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("code", id, ReportKind::kActive).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("nobody", id, ReportKind::kAccepted).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->ReportLease(PartyOf("code", "i2"), {.lease = id}, now_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LedgerTest, ARetriedRequestNeverLeasesTwice) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Answer first = Request("chat", 25, 0, "same");
  const Answer second = Request("chat", 25, 0, "same");
  EXPECT_EQ(second.leases, first.leases);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(3));
  ASSERT_TRUE(Report("code", first.leases[0].id, ReportKind::kDeclined).ok());
  const Answer third = Request("chat", 25, 0, "same");
  EXPECT_THAT(third.leases, SizeIs(2));
  EXPECT_THAT(third.shortage, HasSubstr("have ended"));
  Enter(EngineOf("other"), {}, kBlocks);
  EXPECT_THAT(Request("other", 10, 0, "same").leases, SizeIs(1));  // keys are per instance
}

TEST_F(LedgerTest, ADeclinedExtentIsNotOfferedAgainForAMoment) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease declined = Request("chat", 10).leases.at(0);
  ASSERT_TRUE(Report("code", declined.id, ReportKind::kDeclined).ok());
  EXPECT_THAT(Told(declined.id), ElementsAre(LeaseState::kOffered, LeaseState::kReleased));
  EXPECT_EQ(Request("chat", 10).leases.at(0).extent, (Extent{140, 10}));
  now_ += absl::Seconds(2);
  EXPECT_EQ(Request("chat", 10).leases.at(0).extent, declined.extent);
}

TEST_F(LedgerTest, AnOfferThatIsNotAnsweredEnds) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  EXPECT_EQ(ledger_->NextDeadline(), now_ + absl::Seconds(3));
  now_ += absl::Seconds(3);
  ledger_->Tick(now_);
  EXPECT_THAT(Told(id), ElementsAre(LeaseState::kOffered, LeaseState::kReleased));
  EXPECT_EQ(Report("code", id, ReportKind::kAccepted).code(), absl::StatusCode::kNotFound);
}

TEST_F(LedgerTest, ABrokerThatSleptEndsNoOffer) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  ledger_->Forgive(absl::Hours(1));
  now_ += absl::Hours(1);
  ledger_->Tick(now_);
  EXPECT_TRUE(Known(id));
}

TEST_F(LedgerTest, OnlyReadyEnginesOfTheSameNodeWithAChannelLend) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Engine elsewhere = EngineOf("elsewhere"), alone = EngineOf("alone"), busy = EngineOf("busy");
  elsewhere.node_id = "other";
  alone.channel = "";
  busy.ready = false;
  for (const Engine& engine : {elsewhere, alone, busy}) Enter(engine);
  const Answer none = Request("chat", 10);
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
  Enter(EngineOf("chat"), {}, kBlocks);
  ledger_->Enter(EngineOf("code"), {}, now_);
  EXPECT_THAT(Request("chat", 10).leases, IsEmpty());
}

TEST_F(LedgerTest, APairWithoutAnElasticUnitIsRefusedWithTheReason) {
  Engine coarse = EngineOf("coarse");
  coarse.block_bytes = 13'824;
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(coarse);
  coarse.num_blocks = 20;
  Enter(coarse);
  const Answer answer = Request("chat", 10);
  EXPECT_THAT(answer.leases, IsEmpty());
  EXPECT_THAT(answer.shortage, HasSubstr("coarse: blocks of 13824"));
}

TEST_F(LedgerTest, SeveralDonorsShareTheBurden) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("a"), {}, kBlocks / 2);
  Enter(EngineOf("b"));
  const Answer answer = Request("chat", 160);
  EXPECT_EQ(TotalBlocks(answer.leases), 160);
  int64_t from_a = 0;
  for (const Lease& lease : answer.leases) from_a += lease.donor.name == "a" ? lease.extent.num_blocks : 0;
  EXPECT_EQ(from_a, 40);  // both have as much left
}

TEST_F(LedgerTest, NoMoreIsLentThanTheDonorCanMissAndTheAnswerSaysSo) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"), {}, 130);
  const Answer answer = Request("chat", 1000);
  EXPECT_EQ(TotalBlocks(answer.leases), 30);
  EXPECT_NE(answer.shortage, "");
  EXPECT_EQ(answer.lendable_bytes, 0);
  for (const Lease& lease : answer.leases) EXPECT_GE(lease.extent.first_block, 130);
}

TEST_F(LedgerTest, AnEngineMayLendAndBorrowAtOnce) {
  Enter(EngineOf("a"));
  Enter(EngineOf("b"));
  EXPECT_EQ(Active("a", 10).donor.name, "b");
  EXPECT_EQ(Active("b", 10).donor.name, "a");
}

TEST_F(LedgerTest, BadRequestsAreInvalid) {
  Enter(EngineOf("chat"));
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

TEST_F(LedgerTest, NumbersOfAnyMagnitudeAreCounted) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const elastic::PolicyKind kind : {elastic::PolicyKind::kDefault, elastic::PolicyKind::kPaper}) {
    Options options = TestOptions();
    options.elastic.kind = kind;
    Restart(1, options);
    Enter(EngineOf("code"));
    Enter(EngineOf("chat"));
    Lease lease = Active("chat", 10);
    const auto order = ledger_->ScaleUp(PartyOf("code"), kMax, now_);
    ASSERT_TRUE(order.ok()) << order.status();
    EXPECT_THAT(*order, ::testing::ElementsAre(lease.id));
    const auto lendable = ledger_->ReportWindow(
        PartyOf("code"),
        {.used_blocks = 10, .waiting_blocks = kMax, .window_max_request_tokens = kMax, .window_peak_blocks = kMax},
        now_);
    ASSERT_TRUE(lendable.ok()) << lendable.status();
    EXPECT_LE(*lendable, 10) << "no more than what is lent";
    lease.borrower_blocks = kMax;
    Restart(2, options);  // and the donor claims it at the next broker
    ledger_->Enter(EngineOf("code"), {lease}, now_);
    EXPECT_TRUE(ledger_->Snapshot().empty());
  }
}

// The largest arena that membership lets in: 2^50 bytes.
Engine HugeEngine(const std::string& name, int64_t block_bytes) {
  Engine engine = EngineOf(name);
  engine.block_bytes = block_bytes;
  engine.num_blocks = (int64_t{1} << 50) / block_bytes;
  return engine;
}

TEST_F(LedgerTest, ArenasOfAnySizeAddUpAndTheirHeadroomIsKept) {
  for (const elastic::PolicyKind kind : {elastic::PolicyKind::kDefault, elastic::PolicyKind::kPaper}) {
    Options options = TestOptions();
    options.elastic = {.kind = kind, .headroom_percent = 100};
    Restart(1, options);
    Enter(HugeEngine("chat", 4), {}, HugeEngine("chat", 4).num_blocks);
    const bool keeps_all = kind == elastic::PolicyKind::kDefault;
    for (int64_t i = 0; i < 4; ++i) Enter(HugeEngine(absl::StrCat("donor-", i), 4));
    const auto answer = ledger_->RequestLease(PartyOf("chat"),
                                              {.key = "k", .want_bytes = INT64_MAX, .waiting_tokens = INT64_MAX}, now_);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(TotalBlocks(answer->leases) * 4 + answer->lendable_bytes, keeps_all ? 0 : int64_t{4} << 50);
  }
}

TEST_F(LedgerTest, AnAnswerMakesABoundedNumberOfLeasesAndTheNextOneGoesOn) {
  Enter(HugeEngine("code", kBlock));
  Enter(EngineOf("other"), {}, kBlocks);
  const Lease others = Active("other", 10);
  now_ += TestOptions().min_hold;
  Enter(HugeEngine("chat", kBlock), {}, HugeEngine("chat", kBlock).num_blocks);
  const auto ask = [&](const char* key) {
    const auto answer = ledger_->RequestLease(PartyOf("chat"),
                                              {.key = key, .want_bytes = INT64_MAX, .waiting_tokens = INT64_MAX}, now_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.value_or(Answer{});
  };
  const Answer first = ask("1"), again = ask("1"), second = ask("2");
  EXPECT_THAT(first.leases, SizeIs(kMaxLeasesPerAnswer));
  EXPECT_EQ(first.shortage, "") << "there is more, for the next question";
  EXPECT_EQ(again.leases, first.leases);
  EXPECT_THAT(second.leases, SizeIs(kMaxLeasesPerAnswer));
  EXPECT_EQ(BlocksOf("chat"), 2 * 10 * static_cast<int64_t>(kMaxLeasesPerAnswer));
  EXPECT_EQ(Current(others.id), others) << "nobody loses memory while there is free memory";
}

TEST_F(LedgerTest, NobodyLendsOrBorrowsOnMoreLeasesThanTheLimit) {
  Enter(HugeEngine("code", kBlock));
  Enter(HugeEngine("more", kBlock));
  Enter(EngineOf("chat"), {}, kBlocks);
  std::vector<Lease> claims;
  for (int64_t i = 0; i < 3 * static_cast<int64_t>(kMaxLeasesASide); ++i) {
    claims.push_back({.id = LeaseId(i + 1),
                      .donor = PartyOf("code"),
                      .borrower = PartyOf("chat"),
                      .extent = {.first_block = i, .num_blocks = 1},
                      .num_bytes = kBlock,
                      .borrower_blocks = 1,
                      .epoch = Epoch(1),
                      .state = LeaseState::kGranted,
                      .channel = "/run/code",
                      .capability = "c"});
  }
  ledger_->Enter(HugeEngine("code", kBlock), claims, now_);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(2 * kMaxLeasesASide));
  Restart(2);  // the borrower comes first now
  Enter(EngineOf("chat"), claims, kBlocks);
  Enter(HugeEngine("code", kBlock), claims);
  Enter(HugeEngine("more", kBlock));
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(2 * kMaxLeasesASide));
  const Answer answer = Request("chat", 10);
  EXPECT_THAT(answer.leases, IsEmpty());
  EXPECT_THAT(answer.shortage, HasSubstr("borrows on 4096 leases, the most"));
  Enter(EngineOf("other"), {}, kBlocks);
  for (const Lease& lease : Request("other", 10).leases) EXPECT_EQ(lease.donor, PartyOf("more"));
}

TEST_F(LedgerTest, WhoBorrowsMayUseMoreThanItOwns) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  Active("chat", 10);
  EXPECT_TRUE(ledger_->ReportWindow(PartyOf("chat"), {.used_blocks = kBlocks + 10}, now_).ok());
  EXPECT_FALSE(ledger_->ReportWindow(PartyOf("chat"), {.used_blocks = kBlocks + 11}, now_).ok());
}

// Scale-up.

TEST_F(LedgerTest, ScaleUpNamesTheInnermostLeasesThatCoverTheNeed) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
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
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const std::vector<Lease> leases = Request("chat", 50).leases;
  Activate(leases);
  ASSERT_TRUE(Report("code", leases[0].id, ReportKind::kRevoking).ok());
  EXPECT_THAT(*ledger_->ScaleUp(PartyOf("code"), 11, now_), ElementsAre(leases[0].id, leases[4].id));
}

TEST_F(LedgerTest, ScaleUpTakesFromTheBorrowerThatHasMostForItsWeight) {
  Enter(EngineOf("rich"), {}, kBlocks);
  Enter(EngineOf("poor"), {}, kBlocks);
  Enter(EngineOf("code"));
  const std::vector<Lease> poors = Request("poor", 10).leases;  // outermost
  const std::vector<Lease> riches = Request("rich", 30).leases;
  const std::vector<Lease> innermost = Request("poor", 10).leases;
  for (const auto& leases : {poors, riches, innermost}) Activate(leases);
  const auto order = *ledger_->ScaleUp(PartyOf("code"), 40, now_);
  EXPECT_THAT(order, ElementsAre(riches[2].id, innermost[0].id, riches[1].id, riches[0].id));
}

// Operators.

TEST_F(LedgerTest, AnOperatorsRevokeIsAskedOfTheDonor) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ledger_->TakeChanges();
  EXPECT_TRUE(ledger_->RevokeLease(lease.id, now_).ok());
  EXPECT_TRUE(ledger_->RevokeLease(lease.id, now_).ok());
  EXPECT_THAT(Told(lease.id), ElementsAre(LeaseState::kRevoking));
  ASSERT_TRUE(Report("code", lease.id, ReportKind::kReleased).ok());
  EXPECT_EQ(ledger_->RevokeLease(lease.id, now_).code(), absl::StatusCode::kNotFound);
}

TEST_F(LedgerTest, AnOfferThatIsRevokedWhileItsDonorAcceptsKeepsItsEpochAndEndsByTheDonorsWord) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const LeaseId id = Request("chat", 10).leases.at(0).id;
  ASSERT_TRUE(ledger_->RevokeLease(id, now_).ok());
  ASSERT_TRUE(Report("code", id, ReportKind::kAccepted, 5).ok());
  EXPECT_EQ(Current(id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(id).epoch, Epoch(5));
  now_ += absl::Hours(1);
  ledger_->Tick(now_);
  EXPECT_TRUE(Known(id)) << "the donor has granted it: only its word ends it";
  ASSERT_TRUE(Report("code", id, ReportKind::kFenced).ok());
}

TEST_F(LedgerTest, ALimitRevokesTheNewestLeasesOverItAndBoundsNewOnes) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const std::vector<Lease> leases = Request("chat", 30).leases;
  Activate(leases);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", 15 * kBlock, now_).ok());
  EXPECT_EQ(Current(leases[0].id).state, LeaseState::kActive);
  EXPECT_EQ(Current(leases[1].id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(leases[2].id).state, LeaseState::kRevoking);
  const Answer refused = Request("chat", 10);
  EXPECT_THAT(refused.leases, IsEmpty());
  EXPECT_THAT(refused.shortage, HasSubstr("limit on model 'chat-model'"));
  ASSERT_TRUE(Report("code", leases[1].id, ReportKind::kReleased).ok());
  ASSERT_TRUE(Report("code", leases[2].id, ReportKind::kReleased).ok());
  EXPECT_EQ(TotalBlocks(Request("chat", 10).leases), 5);
  EXPECT_EQ(ledger_->LimitLease("chat-model", -1, now_).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(ledger_->LimitLease("chat-model", std::nullopt, now_).ok());
  EXPECT_EQ(TotalBlocks(Request("chat", 10).leases), 10);
}

// Fairness.

TEST_F(LedgerTest, WhoComesSecondGetsItsShareBack) {
  Enter(EngineOf("first"), {}, kBlocks);
  Enter(EngineOf("second"), {}, kBlocks);
  Enter(EngineOf("code"));
  Activate(Request("first", 1000, 4000).leases);
  EXPECT_EQ(BlocksOf("first"), 160);
  now_ += absl::Seconds(2);
  const Answer waits = Request("second", 1000, 4000);
  EXPECT_THAT(waits.leases, IsEmpty());
  EXPECT_THAT(waits.shortage, HasSubstr("being taken back"));
  EXPECT_EQ(BlocksOf("first"), 80);
  for (const Lease& lease : ledger_->Snapshot()) {
    if (lease.state != LeaseState::kRevoking) continue;
    ASSERT_TRUE(Report("code", lease.id, ReportKind::kReleased).ok());
  }
  const Answer first_again = Request("first", 1000, 4000);
  EXPECT_THAT(first_again.leases, IsEmpty()) << "the room is the other's";
  EXPECT_EQ(TotalBlocks(Request("second", 1000, 4000).leases), 80);
}

TEST_F(LedgerTest, MoreWaitingTokensWeighMore) {
  Enter(EngineOf("light"), {}, kBlocks);
  Enter(EngineOf("heavy"), {}, kBlocks);
  Enter(EngineOf("code"));
  Activate(Request("light", 1000, 0).leases);
  now_ += absl::Seconds(2);
  Request("heavy", 1000, 3 * 1024);  // weighs 4096 against 1024
  EXPECT_THAT(BlocksOf("light"), testing::AllOf(testing::Ge(32), testing::Lt(42)));
}

TEST_F(LedgerTest, YoungLeasesAndSmallDifferencesStayForPeaceSake) {
  Enter(EngineOf("first"), {}, kBlocks);
  Enter(EngineOf("second"), {}, kBlocks);
  Enter(EngineOf("code"));
  Activate(Request("first", 90).leases);
  Request("second", 1000);
  EXPECT_EQ(BlocksOf("first"), 90) << "younger than min_hold";
  now_ += absl::Seconds(2);
  Request("second", 1000);
  EXPECT_EQ(BlocksOf("first"), 90) << "the second has 70 of its share of 80";
}

TEST_F(LedgerTest, WhatAnIdleBorrowerHasCachedYieldsToTokensThatWait) {
  Enter(EngineOf("idle"), {}, kBlocks);
  Enter(EngineOf("busy"), {}, kBlocks);
  Enter(EngineOf("code"));
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

// Death and departure.

TEST_F(LedgerTest, LeasesOfADeadDonorEnd) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->TakeChanges();
  ledger_->Leave("code", now_);
  EXPECT_FALSE(Known(lease.id));
  EXPECT_FALSE(Known(offer));
  EXPECT_THAT(Told(lease.id), ElementsAre(LeaseState::kReleased));
}

TEST_F(LedgerTest, LeasesOfADeadBorrowerAreRevokedByTheirDonor) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->Leave("chat", now_);
  EXPECT_EQ(Current(lease.id).state, LeaseState::kRevoking);
  EXPECT_EQ(Current(offer).state, LeaseState::kRevoking);
  ASSERT_TRUE(Report("code", lease.id, ReportKind::kFenced).ok());
  now_ += absl::Seconds(3);  // the offer was never accepted
  ledger_->Tick(now_);
  EXPECT_THAT(ledger_->Snapshot(), IsEmpty());
}

TEST_F(LedgerTest, ANewInstanceOfTheSameNameHasNothingOfTheOld) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease lease = Active("chat", 10);
  ledger_->Enter(EngineOf("chat", "i2"), {}, now_);
  EXPECT_EQ(Current(lease.id).state, LeaseState::kRevoking);
  ledger_->Enter(EngineOf("code", "i2"), {}, now_);
  EXPECT_FALSE(Known(lease.id));
}

// Restart.

class LedgerRestartTest : public LedgerTest {
 protected:
  void SetUp() override {
    Enter(EngineOf("chat"), {}, kBlocks);
    Enter(EngineOf("code"));
    lease_ = Active("chat", 10);
    Restart(2);
  }
  Lease lease_;
};

TEST_F(LedgerRestartTest, TheTableIsRebuiltFromWhatBothHold) {
  for (const bool borrower_first : {false, true}) {
    Restart(3);
    if (borrower_first) ledger_->Enter(EngineOf("chat"), {lease_}, now_);
    ledger_->Enter(EngineOf("code"), {lease_}, now_);
    if (!borrower_first) ledger_->Enter(EngineOf("chat"), {lease_}, now_);
    now_ += absl::Hours(1);
    ledger_->Tick(now_);
    EXPECT_EQ(Current(lease_.id), lease_);
  }
}

TEST_F(LedgerRestartTest, TheBorrowerKnowsWhetherItHasMappedTheLease) {
  Lease as_donor = lease_;
  as_donor.state = LeaseState::kGranted;
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  ledger_->Enter(EngineOf("code"), {as_donor}, now_);
  EXPECT_EQ(Current(lease_.id).state, LeaseState::kActive);
  Restart(3);
  ledger_->Enter(EngineOf("code"), {as_donor}, now_);
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  EXPECT_EQ(Current(lease_.id).state, LeaseState::kActive);
}

TEST_F(LedgerRestartTest, ALeaseThatOnlyTheBorrowerKnowsDiesOnceTheDonorIsThere) {
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  EXPECT_THAT(ledger_->TakeChanges(), IsEmpty());
  ledger_->Enter(EngineOf("code"), {}, now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kReleased));
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kReleased));
}

TEST_F(LedgerRestartTest, ALeaseWhoseDonorNeverComesDiesAfterTwoHeartbeats) {
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  EXPECT_EQ(ledger_->NextDeadline(), now_ + absl::Seconds(2));
  now_ += absl::Seconds(2);
  ledger_->Tick(now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kReleased));
  EXPECT_EQ(ledger_->NextDeadline(), std::nullopt);
}

TEST_F(LedgerRestartTest, ALeaseThatOnlyTheDonorKnowsIsRevokedAfterTwoHeartbeats) {
  ledger_->Enter(EngineOf("code"), {lease_}, now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kActive));
  now_ += absl::Seconds(2) - absl::Milliseconds(1);
  ledger_->Tick(now_);
  EXPECT_THAT(Told(lease_.id), IsEmpty());
  now_ += absl::Milliseconds(1);
  ledger_->Tick(now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kRevoking));
}

TEST_F(LedgerRestartTest, ABorrowerThatReportsALeaseActiveHasConfirmedIt) {
  ledger_->Enter(EngineOf("chat"), {}, now_);
  Lease granted = lease_;
  granted.state = LeaseState::kGranted;
  ledger_->Enter(EngineOf("code"), {granted}, now_);
  ASSERT_TRUE(Report("chat", lease_.id, ReportKind::kActive).ok());
  now_ += absl::Hours(1);
  ledger_->Tick(now_);
  EXPECT_EQ(Current(lease_.id).state, LeaseState::kActive);
}

TEST_F(LedgerRestartTest, ABorrowerWhoseDonorHasNotComeYetIsToReportAgain) {
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  EXPECT_EQ(Report("chat", lease_.id, ReportKind::kActive).code(), absl::StatusCode::kUnavailable);
  ledger_->Enter(EngineOf("code"), {lease_}, now_);
  EXPECT_TRUE(Report("chat", lease_.id, ReportKind::kActive).ok());
}

TEST_F(LedgerRestartTest, ABorrowerWhoseDonorNeverComesIsToForget) {
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  now_ += absl::Seconds(2);
  ledger_->Tick(now_);
  EXPECT_EQ(Report("chat", lease_.id, ReportKind::kActive).code(), absl::StatusCode::kNotFound);
}

TEST_F(LedgerRestartTest, ALeaseInUseThatItsBorrowerDoesNotClaimIsRevokedAtOnce) {
  ledger_->Enter(EngineOf("code"), {lease_}, now_);
  ledger_->Enter(EngineOf("chat"), {}, now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kActive, LeaseState::kRevoking));
}

TEST_F(LedgerRestartTest, ConflictingClaimsGoToTheOwner) {
  Lease others = lease_;
  others.id = LeaseId(77);
  others.borrower = PartyOf("other");
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  ledger_->Enter(EngineOf("other"), {others}, now_);
  ledger_->Enter(EngineOf("code"), {others}, now_);
  EXPECT_TRUE(Known(others.id));
  EXPECT_FALSE(Known(lease_.id));
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kReleased));
}

TEST_F(LedgerRestartTest, AFalseClaimOfALivingLeaseIsToldToNobody) {
  Lease stolen = lease_;
  stolen.borrower = PartyOf("thief");
  ledger_->Enter(EngineOf("thief"), {stolen}, now_);  // before its owner is there
  ledger_->Enter(EngineOf("code"), {lease_}, now_);
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  ledger_->Enter(EngineOf("thief"), {stolen}, now_);  // and after
  now_ += absl::Hours(1);
  ledger_->Tick(now_);
  EXPECT_THAT(Told(lease_.id), ElementsAre(LeaseState::kActive)) << "no word of its end";
  EXPECT_EQ(Current(lease_.id), lease_);
}

TEST_F(LedgerRestartTest, TheEndOfAClaimNamesNobodyButTheClaimant) {
  const auto ends = [&] {
    std::vector<std::pair<Party, Party>> parties;
    for (const Change& change : ledger_->TakeChanges()) parties.emplace_back(change.lease.donor, change.lease.borrower);
    return parties;
  };
  ledger_->Enter(EngineOf("code"), {}, now_);
  ledger_->Enter(EngineOf("chat"), {lease_}, now_);
  EXPECT_THAT(ends(), ElementsAre(std::pair(Party(), PartyOf("chat"))));
  Lease bad = lease_;
  ++bad.num_bytes;
  ledger_->Enter(EngineOf("code"), {bad}, now_);
  EXPECT_THAT(ends(), ElementsAre(std::pair(PartyOf("code"), Party())));
}

TEST_F(LedgerRestartTest, ADonorCannotClaimOneExtentTwice) {
  Lease twin = lease_;
  twin.id = LeaseId(77);
  twin.extent.first_block -= 5;
  ledger_->Enter(EngineOf("code"), {lease_, twin}, now_);
  EXPECT_TRUE(Known(lease_.id));
  EXPECT_FALSE(Known(twin.id));
  EXPECT_THAT(Told(twin.id), ElementsAre(LeaseState::kReleased));
}

TEST_F(LedgerRestartTest, ClaimsThatCannotBeAreEnded) {
  const auto expect_refused = [&](const char* what, auto change) {
    Restart(3);
    Lease bad = lease_;
    change(bad);
    ledger_->Enter(EngineOf("code"), {bad}, now_);
    EXPECT_THAT(ledger_->Snapshot(), IsEmpty()) << what;
    ExpectSound();
  };
  expect_refused("beyond the arena", [](Lease& l) { l.extent.first_block = kBlocks - 1; });
  expect_refused("negative", [](Lease& l) { l.extent.first_block = -10; });
  expect_refused("wraps", [](Lease& l) { l.extent.num_blocks = INT64_MAX; });
  expect_refused("bytes", [](Lease& l) { ++l.num_bytes; });
  expect_refused("no epoch", [](Lease& l) { l.epoch.reset(); });
  expect_refused("to itself", [](Lease& l) { l.borrower = l.donor; });
  expect_refused("no capability", [](Lease& l) { l.capability.clear(); });
  expect_refused("an offer", [](Lease& l) { l.state = LeaseState::kOffered; });
  expect_refused("an end", [](Lease& l) { l.state = LeaseState::kFenced; });
  expect_refused("no id", [](Lease& l) { l.id = LeaseId(0); });
  expect_refused("somebody else's", [](Lease& l) { l.donor = PartyOf("x"); });
}

TEST_F(LedgerRestartTest, NewIdsDifferFromThoseOfEarlierBrokers) {
  ledger_->Enter(EngineOf("code"), {lease_}, now_);
  Enter(EngineOf("code"), {lease_});
  Enter(EngineOf("chat"), {lease_}, kBlocks);
  const Lease next = Request("chat", 10).leases.at(0);
  EXPECT_NE(next.id, lease_.id);
  EXPECT_GT(next.id.value(), 0);
  EXPECT_FALSE(next.extent.Overlaps(lease_.extent));
}

TEST_F(LedgerTest, AnEngineThatRegistersAgainSaysWhatItHolds) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  const Lease kept = Active("chat", 10), dropped = Active("chat", 10);
  const LeaseId offer = Request("chat", 10).leases.at(0).id;
  ledger_->Enter(EngineOf("code"), {kept}, now_);
  EXPECT_EQ(Current(kept.id), kept);
  EXPECT_FALSE(Known(dropped.id)) << "its owner does not know it";
  EXPECT_TRUE(Known(offer)) << "it may not have heard of it yet";
  ledger_->Enter(EngineOf("chat"), {}, now_);
  EXPECT_EQ(Current(kept.id).state, LeaseState::kRevoking);
}

TEST_F(LedgerTest, AClaimOfALostAcceptanceIsTheAcceptance) {
  Enter(EngineOf("chat"), {}, kBlocks);
  Enter(EngineOf("code"));
  Lease lease = Request("chat", 10).leases.at(0);
  lease.state = LeaseState::kGranted;
  lease.epoch = Epoch(3);
  ledger_->Enter(EngineOf("code"), {lease}, now_);
  EXPECT_EQ(Current(lease.id), lease);
}

}  // namespace
}  // namespace swiftcache::broker::ledger
