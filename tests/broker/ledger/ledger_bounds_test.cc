// SPDX-License-Identifier: Apache-2.0
// The largest numbers, arenas and tables of leases.
#include <cstdint>
#include <limits>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(LedgerTest, NumbersOfAnyMagnitudeAreCounted) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const elastic::PolicyKind kind : {elastic::PolicyKind::kDefault, elastic::PolicyKind::kPaper}) {
    Options options = TestOptions();
    options.elastic.kind = kind;
    Restart(1, options);
    AddEngine(EngineOf("code"));
    AddEngine(EngineOf("chat"));
    Lease lease = Active("chat", 10);
    const auto order = ledger_->ScaleUp(PartyOf("code"), kMax, now_);
    ASSERT_TRUE(order.ok()) << order.status();
    EXPECT_THAT(*order, ::testing::ElementsAre(lease.id));
    const elastic::Demand demand = {
        .used_blocks = 10, .waiting_blocks = kMax, .window_max_request_tokens = kMax, .window_peak_blocks = kMax};
    ASSERT_EQ(ledger_->ReportWindow(PartyOf("code"), demand, now_), absl::OkStatus());
    EXPECT_THAT(Request("chat", 10).leases, ::testing::IsEmpty()) << "no more than what is lent";
    lease.borrower_blocks = kMax;
    Restart(2, options);  // and the donor claims it at the next broker
    ledger_->AddEngine(EngineOf("code"), {lease}, now_);
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
    AddEngine(HugeEngine("chat", 4), {}, HugeEngine("chat", 4).num_blocks);
    const bool keeps_all = kind == elastic::PolicyKind::kDefault;
    for (int64_t i = 0; i < 4; ++i) AddEngine(HugeEngine(absl::StrCat("donor-", i), 4));
    const auto answer = ledger_->RequestLease(PartyOf("chat"),
                                              {.key = "k", .want_bytes = INT64_MAX, .waiting_tokens = INT64_MAX}, now_);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(TotalBlocks(answer->leases) * 4 + answer->lendable_bytes, keeps_all ? 0 : int64_t{4} << 50);
  }
}

TEST_F(LedgerTest, AnAnswerMakesABoundedNumberOfLeasesAndTheNextOneGoesOn) {
  AddEngine(HugeEngine("code", kBlock));
  AddEngine(EngineOf("other"), {}, kBlocks);
  const Lease others = Active("other", 10);
  now_ += TestOptions().min_hold;
  AddEngine(HugeEngine("chat", kBlock), {}, HugeEngine("chat", kBlock).num_blocks);
  const auto ask = [&](const char* key) {
    const auto answer = ledger_->RequestLease(PartyOf("chat"),
                                              {.key = key, .want_bytes = INT64_MAX, .waiting_tokens = INT64_MAX}, now_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.value_or(LeaseResponse{});
  };
  const LeaseResponse first = ask("1"), again = ask("1"), second = ask("2");
  EXPECT_THAT(first.leases, SizeIs(kMaxLeasesPerResponse));
  EXPECT_EQ(first.shortage, "") << "there is more, for the next question";
  EXPECT_EQ(again.leases, first.leases);
  EXPECT_THAT(second.leases, SizeIs(kMaxLeasesPerResponse));
  EXPECT_EQ(BlocksOf("chat"), 2 * 10 * static_cast<int64_t>(kMaxLeasesPerResponse));
  EXPECT_EQ(Current(others.id), others) << "nobody loses memory while there is free memory";
}

// Units of all sizes, whole blocks of both.
TEST_F(LedgerTest, ByDefaultAllOfAnArenaFitsIntoTheLeasesThatADonorMayGive) {
  Options options = TestOptions();
  options.max_lease_bytes = 0;
  for (const int64_t arena_bytes : {int64_t{8} << 30, int64_t{100} << 30, int64_t{1} << 40}) {
    for (const int64_t block_bytes : {int64_t{48} << 10, int64_t{9} << 20, int64_t{33} << 20}) {
      Restart(1, options);
      Engine donor = EngineOf("code"), borrower = EngineOf("chat");
      donor.block_bytes = 3 * block_bytes, borrower.block_bytes = 2 * block_bytes;
      donor.num_blocks = arena_bytes / donor.block_bytes;
      AddEngine(borrower, {}, kBlocks);
      AddEngine(donor);
      int64_t leases = 0, blocks = 0, most = 0;
      for (int key = 1; key <= 16; ++key) {
        const auto answer = ledger_->RequestLease(
            PartyOf("chat"), {.key = absl::StrCat(key), .want_bytes = INT64_MAX, .waiting_tokens = 1}, now_);
        ASSERT_TRUE(answer.ok()) << answer.status();
        leases += static_cast<int64_t>(answer->leases.size());
        for (const Lease& lease : answer->leases) {
          blocks += lease.extent.num_blocks;
          most = std::max(most, lease.num_bytes);
        }
      }
      EXPECT_GE(blocks, donor.num_blocks - 1) << "all of it, but for what is no whole unit";
      EXPECT_LE(leases, static_cast<int64_t>(kMaxLeasesPerSide));
      EXPECT_LE(most, std::max({int64_t{16} << 20, arena_bytes / 2048, 6 * block_bytes})) << "and no larger than that";
    }
  }
}

TEST_F(LedgerTest, NobodyLendsOrBorrowsOnMoreLeasesThanTheLimit) {
  AddEngine(HugeEngine("code", kBlock));
  AddEngine(HugeEngine("more", kBlock));
  AddEngine(EngineOf("chat"), {}, kBlocks);
  std::vector<Lease> claims;
  for (int64_t i = 0; i < 3 * static_cast<int64_t>(kMaxLeasesPerSide); ++i) claims.push_back(LeaseOfBlock(i, "chat"));
  ledger_->AddEngine(HugeEngine("code", kBlock), claims, now_);
  EXPECT_THAT(ledger_->Snapshot(), SizeIs(kMaxLeasesPerSide));
  Lease more = claims.back();
  EXPECT_EQ(Say(more).code(), absl::StatusCode::kFailedPrecondition) << "one by one neither";
  AddEngine(HugeEngine("more", kBlock));
  const LeaseResponse answer = Request("chat", 10);
  EXPECT_THAT(answer.leases, IsEmpty());
  EXPECT_THAT(answer.shortage, HasSubstr("borrows on 4096 leases, the most"));
  AddEngine(EngineOf("other"), {}, kBlocks);
  for (const Lease& lease : Request("other", 10).leases) EXPECT_EQ(lease.donor, PartyOf("more"));
}

}  // namespace
}  // namespace swiftcache::broker::ledger
