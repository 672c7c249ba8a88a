// SPDX-License-Identifier: Apache-2.0
// What sharing saved and cost. tests/sim/worth compares the sums with engines that share nothing.
#include "engine/kv/sharing_worth.h"

#include <gtest/gtest.h>

#include "tests/engine/kv/kv_cache_tiers_fixture.h"

namespace swiftcache::engine::kv {
namespace {

class SharingWorthTest : public KvCacheTiersTest {
 protected:
  SharingWorthTest() {
    cache_ = std::make_unique<KvCache>(KvCache::Options{.num_blocks = 4,
                                                        .block_tokens = kBlockTokens,
                                                        .may_borrow = true,
                                                        .measures_reuse = true,
                                                        .watermark_blocks = 1});
  }
  // Blocks that a prompt of these tokens, and one more, finds.
  int64_t Ask(Tokens tokens) {
    tokens.push_back(0);
    BlockTable table;
    const int64_t found = cache_->Attach(table, "", tokens).tokens;
    cache_->Release(table);
    return found;
  }
  // More than own memory holds: the older of two prompts goes to the lease.
  RegionId FillOwnMemoryAndALease() {
    const RegionId lease = cache_->AddRegion(8);
    Cache(old_);
    BlockTable table;
    EXPECT_EQ(cache_->Grow(table, 8, 8), Growth::kWait);
    Spill();
    Cache(new_);
    EXPECT_EQ(cache_->leased_in().cached, 4);
    return lease;
  }
  void Lend(int32_t first, int32_t count) {
    const auto moves = cache_->ClearForLending({first, count}, 100);
    ASSERT_TRUE(moves.has_value());
    for (const Move& move : *moves) cache_->FinishMove(move);
    ASSERT_TRUE(cache_->Lend({first, count}));
  }

  const Tokens old_ = Count(8), new_ = Count(8, 100);
};

TEST_F(SharingWorthTest, BorrowingSavesWhatOwnMemoryWouldNotHaveHad) {
  FillOwnMemoryAndALease();
  EXPECT_EQ(cache_->worth(), SharingWorth());
  EXPECT_EQ(Ask(old_), 8);
  EXPECT_EQ(cache_->worth(), (SharingWorth{.saved_tokens = 8}));
  EXPECT_EQ(Ask(old_), 8);
  EXPECT_EQ(cache_->worth().saved_tokens, 8) << "used a moment ago: own memory would have it too";
}

TEST_F(SharingWorthTest, WhatOthersUseAtTheTimeIsNotSaved) {
  FillOwnMemoryAndALease();
  BlockTable running;
  cache_->Attach(running, "", Count(9));
  EXPECT_EQ(Ask(new_), 8);
  ASSERT_EQ(cache_->worth().saved_tokens, 16);
  EXPECT_EQ(Ask(old_), 8);
  EXPECT_EQ(cache_->worth().saved_tokens, 16) << "no cache gives up what a sequence holds";
  cache_->Release(running);
}

TEST_F(SharingWorthTest, ASequenceThatRunsAgainSavesNothingMore) {
  FillOwnMemoryAndALease();
  BlockTable table;
  cache_->Attach(table, "", Count(9));
  cache_->Release(table);
  Ask(new_);
  ASSERT_EQ(cache_->worth().saved_tokens, 16);
  EXPECT_EQ(cache_->Attach(table, "", Count(9)).tokens, 8);
  EXPECT_EQ(cache_->worth().saved_tokens, 16);
  cache_->Release(table);
}

TEST_F(SharingWorthTest, WithoutALeaseNothingIsSaved) {
  BlockTable running;
  Run(running, old_);
  EXPECT_EQ(Ask(old_), 8);
  EXPECT_EQ(cache_->worth(), SharingWorth());
  cache_->Release(running);
}

TEST_F(SharingWorthTest, LendingCostsWhatOwnMemoryWouldHaveHad) {
  Cache(old_);
  Lend(2, 2);
  EXPECT_EQ(Ask(old_), 4);
  EXPECT_EQ(cache_->worth(), (SharingWorth{.again_for_loans_tokens = 4}));
  Ask(old_);
  EXPECT_EQ(cache_->worth().again_for_loans_tokens, 4) << "the first prompt computes it";
}

TEST_F(SharingWorthTest, WhatIsEvictedWhileMemoryIsLentIsAskedForLater) {
  Lend(2, 2);
  cache_->KeepCached(0);
  Cache(Count(4));
  Cache(Count(4, 50));  // in the room of the first
  cache_->TakeBack({2, 2});
  EXPECT_EQ(Ask(Count(4)), 0);
  EXPECT_EQ(cache_->worth().again_for_loans_tokens, 4);
}

TEST_F(SharingWorthTest, WhatAllOfOwnMemoryWouldHaveLostTooCostsNothing) {
  Cache(old_);
  Lend(2, 2);
  cache_->TakeBack({2, 2});
  Cache(new_);
  EXPECT_EQ(Ask(old_), 0);
  EXPECT_EQ(cache_->worth(), SharingWorth());
}

TEST_F(SharingWorthTest, ALostLeaseCostsWhatOwnMemoryWouldHaveHad) {
  const RegionId lease = FillOwnMemoryAndALease();
  Ask(old_);  // so that it is among the four blocks used last, and lies in the lease
  cache_->RegionDraining(lease);
  EXPECT_EQ(cache_->DropRegion(lease), 4);
  EXPECT_EQ(Ask(old_), 0);
  EXPECT_EQ(cache_->worth(), (SharingWorth{.saved_tokens = 8, .again_for_losses_tokens = 8}));
  EXPECT_EQ(cache_->worth().net_tokens(), 0);
}

}  // namespace
}  // namespace swiftcache::engine::kv
