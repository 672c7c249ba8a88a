// SPDX-License-Identifier: Apache-2.0
// Memory of the own arena that is lent: how a run is cleared, lent and taken back, and what that costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "engine/kv/block_pool.h"
#include "tests/engine/kv/kv_cache_tiers_fixture.h"

namespace swiftcache::engine::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(KvCacheTiersTest, LentMemoryIsAskedBackBeforeAnythingIsEvicted) {
  Create(4);
  ASSERT_TRUE(cache_->Lend({2, 2}));
  Cache(Count(4));
  BlockTable table;
  EXPECT_EQ(cache_->Grow(table, 2, 6), Growth::kWait);
  EXPECT_EQ(cache_->TakeNeed(), 2) << "no more than there is";
  EXPECT_EQ(cache_->TakeNeed(), 0) << "until somebody asks again";
  cache_->TakeBack({2, 2});
  EXPECT_EQ(cache_->Grow(table, 6), Growth::kDone);
  EXPECT_EQ(cache_->evicted_total(), 1) << "only when all of it is back";
  EXPECT_THAT(cache_->TakeDirty(), ElementsAre(2, 3));
  cache_->Release(table);
  EXPECT_EQ(cache_->Grow(table, 8), Growth::kDone);
  EXPECT_THAT(cache_->TakeDirty(), IsEmpty()) << "scrubbed once";
}

TEST_F(KvCacheTiersTest, WhoAsksForSlotsAgainAndAgainNeedsNoMore) {
  Create(6);
  ASSERT_TRUE(cache_->Lend({2, 4}));
  Cache(Count(4));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cache_->ReserveLocal(1), Growth::kWait);
  EXPECT_EQ(cache_->TakeNeed(), 1);
  BlockTable table;
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kWait);
  EXPECT_EQ(cache_->ReserveLocal(1), Growth::kWait);
  EXPECT_EQ(cache_->TakeNeed(), 3);
  EXPECT_EQ(cache_->ReserveLocal(1), Growth::kWait);
  EXPECT_EQ(cache_->ReserveLocal(0), Growth::kDone);
  EXPECT_EQ(cache_->TakeNeed(), 0) << "nobody wants them any more";
}

TEST_F(KvCacheTiersTest, WhatIsWithheldIsAsIfTheArenaHadLess) {
  Create(6);
  ASSERT_TRUE(cache_->Lend({2, 4}));
  Cache(Count(4));
  cache_->Withhold({4, 2});
  EXPECT_EQ(cache_->num_usable_local(), 4);
  EXPECT_EQ(cache_->num_leased_out(), 2);
  EXPECT_EQ(cache_->num_available(), 4);
  BlockTable table;
  EXPECT_EQ(cache_->Grow(table, 2), Growth::kWait) << "for what is lent";
  cache_->Withhold({2, 2});
  EXPECT_EQ(cache_->TakeNeed(), 0);
  EXPECT_FALSE(cache_->has_tiers());
  EXPECT_EQ(cache_->num_usable_local(), 2);
  EXPECT_EQ(cache_->Grow(table, 6), Growth::kNoRoom);
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kDone) << "by evicting";
  Check({&table});
  cache_->TakeBack({2, 4});
  EXPECT_EQ(cache_->num_usable_local(), 6);
  EXPECT_EQ(cache_->Grow(table, 12), Growth::kDone);
  Check({&table});
}

TEST_F(KvCacheTiersTest, WhatIsNotWorthKeepingIsEvictedBeforeLentMemoryIsAskedBack) {
  Create(6);
  ASSERT_TRUE(cache_->Lend({4, 2}));
  Cache(Count(8));
  cache_->KeepCached(5);
  BlockTable table;
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kWait) << "two more and the five used last are all that there is room for";
  EXPECT_EQ(cache_->TakeNeed(), 1);
  EXPECT_EQ(cache_->evicted_total(), 1) << "of six";
  cache_->KeepCached(4);
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kDone);
  EXPECT_EQ(cache_->TakeNeed(), 0);
  EXPECT_EQ(cache_->evicted_total(), 2);
  Check({&table});
}

TEST_F(KvCacheTiersTest, AWholeRunIsLentOrNothing) {
  Create(8);
  BlockTable table;
  ASSERT_EQ(cache_->Grow(table, 2), Growth::kDone);
  EXPECT_FALSE(cache_->Lend({0, 4}));
  EXPECT_TRUE(cache_->Lend({1, 7}));
  EXPECT_FALSE(cache_->Lend({6, 1}));
  EXPECT_EQ(cache_->num_leased_out(), 7);
  cache_->TakeBack({5, 3});
  EXPECT_EQ(cache_->local().free, 3);
  Check({&table});
}

TEST_F(KvCacheTiersTest, ClearingARunDropsIdleBlocksAndMovesThoseInUseBelow) {
  Create(8);
  BlockTable below, inside;
  Run(below, Count(4));
  Cache(Count(6, 50));        // 2, 3, 4
  Run(inside, Count(3, 90));  // 5, 6: the last is not full
  cache_->Release(below);     // 0, 1 are idle: colder than the run's
  for (const bool last : {false, true}) {
    const std::optional<std::vector<Move>> moves = cache_->ClearForLending({4, 4}, 1);
    ASSERT_TRUE(moves.has_value());
    ASSERT_THAT(*moves, SizeIs(1)) << "no more than allowed";
    EXPECT_FALSE(cache_->Lend({4, 4})) << "not before it is done";
    EXPECT_LT(moves->front().to.index, 4);
    EXPECT_TRUE(cache_->FinishMove(moves->front()));
    EXPECT_EQ(cache_->Lend({4, 4}), last) << "the other is still there";
  }
  EXPECT_EQ(cache_->ClearForLending({3, 2}, 8), std::nullopt) << "some of it is lent";
  Check({&inside});
}

TEST_F(KvCacheTiersTest, ClearingARunKeepsTheHottestBlocksAndEvictsTheColdest) {
  Create(8);
  Cache(Count(6, 10));  // 0, 1, 2
  Cache(Count(4, 50));  // 3, 4
  Cache(Count(4, 90));  // 5, 6: used last
  cache_->KeepCached(4);
  const std::optional<std::vector<Move>> moves = cache_->ClearForLending({4, 4}, 8);
  ASSERT_TRUE(moves.has_value());
  EXPECT_THAT(*moves, SizeIs(3)) << "4, 5, 6";
  for (const Move& move : *moves) EXPECT_TRUE(cache_->FinishMove(move));
  EXPECT_TRUE(cache_->Lend({4, 4}));
  EXPECT_EQ(cache_->evicted_total(), 3) << "the prompt that was used first";
  EXPECT_EQ(cache_->Measure("", Count(5, 90)).blocks, 2);
  EXPECT_EQ(cache_->Measure("", Count(5, 50)).blocks, 2);
  Check({});
}

TEST_F(KvCacheTiersTest, ARunIsNotClearedWithoutRoomBelow) {
  Create(4);
  BlockTable table;
  Run(table, Count(8));
  EXPECT_EQ(cache_->ClearForLending({2, 2}, 8), std::nullopt);
  Check({&table});
}

TEST(LendingTest, WhatNobodyHadSinceItWasZeroedIsNotWritten) {
  BlockPool pool(10);
  EXPECT_THAT(pool.WrittenIn({0, 10}), IsEmpty()) << "KV memory begins zeroed";
  std::vector<BlockRef> allocated = *pool.Allocate(2, std::nullopt);
  const std::vector<int32_t> reserved = pool.Reserve(1);
  ASSERT_TRUE(pool.Lend({6, 3}));
  EXPECT_THAT(pool.WrittenIn({0, 10}), ElementsAre(PlaceRun{0, 3}));
  pool.TakeBack({6, 3});
  allocated.clear();
  pool.Unreserve(reserved.front());
  EXPECT_THAT(pool.WrittenIn({0, 10}), ElementsAre(PlaceRun{0, 3}, PlaceRun{6, 3})) << "free again, and not zeroed";
  EXPECT_THAT(pool.WrittenIn({2, 5}), ElementsAre(PlaceRun{2, 1}, PlaceRun{6, 1})) << "of this run only";
  ASSERT_TRUE(pool.Lend({0, 9}));
  pool.NoteZeroed({1, 6});
  EXPECT_THAT(pool.WrittenIn({0, 10}), ElementsAre(PlaceRun{0, 1}, PlaceRun{7, 2}));
  pool.TakeBack({0, 4});
  EXPECT_THAT(pool.WrittenIn({0, 10}), ElementsAre(PlaceRun{0, 4}, PlaceRun{7, 2})) << "its borrower may have written";
  EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
}

TEST(LendingTest, AScrubbedPlaceIsWrittenByWhoeverItWasScrubbedFor) {
  BlockPool pool(4);
  ASSERT_TRUE(pool.Lend({0, 2}));
  pool.NoteZeroed({0, 2});
  pool.TakeBack({0, 2});
  const auto block = pool.Allocate(1, std::nullopt);
  EXPECT_THAT(pool.TakeDirty(), ElementsAre(0));
  EXPECT_THAT(pool.WrittenIn({0, 4}), ElementsAre(PlaceRun{0, 2}));
}

TEST(LendingTest, APlaceThatIsGivenUpBeforeItWasScrubbedIsDirtyAgain) {
  BlockPool pool(4);
  ASSERT_TRUE(pool.Lend({0, 2}));
  pool.TakeBack({0, 2});
  (void)pool.Allocate(2, std::nullopt);  // and given up at once
  EXPECT_THAT(pool.TakeDirty(), IsEmpty()) << "a block that comes home may lie there by now";
  const auto again = pool.Allocate(2, std::nullopt);
  EXPECT_THAT(pool.TakeDirty(), ElementsAre(0, 1));
  EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
}

TEST(LendingTest, APlaceThatABlockMovesToIsWritten) {
  BlockPool pool(4);
  const std::vector<BlockRef> moved = *pool.Allocate(1, std::nullopt);
  ASSERT_TRUE(pool.FinishMove(*pool.BeginMove(moved[0].id(), pool.AddRegion(1))));
  const std::vector<BlockRef> instead = *pool.Allocate(1, std::nullopt);
  const std::optional<Move> home = pool.BeginMove(moved[0].id(), kLocalRegion);
  ASSERT_EQ(home->to.index, 1);
  EXPECT_THAT(pool.WrittenIn({0, 4}), ElementsAre(PlaceRun{0, 2}));
  pool.AbortMove(*home);
  EXPECT_THAT(pool.WrittenIn({0, 4}), ElementsAre(PlaceRun{0, 2})) << "some of it may have arrived";
}

TEST(LendingTest, WhatWasLentAndGrantedToNobodyIsNoMoreWrittenAndDirtyThanBefore) {
  BlockPool pool(6);
  ASSERT_TRUE(pool.Lend({0, 2}));
  pool.TakeBack({0, 2});
  (void)pool.Allocate(4, std::nullopt);  // 0 to 3, given up at once: the first two are still dirty
  ASSERT_TRUE(pool.Lend({0, 6}));
  pool.Unlend({0, 6});
  EXPECT_THAT(pool.WrittenIn({0, 6}), ElementsAre(PlaceRun{0, 4}));
  const auto blocks = pool.Allocate(6, std::nullopt);
  EXPECT_THAT(pool.TakeDirty(), ElementsAre(0, 1));
  EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
}

TEST(LendingDeathTest, OnlyWhatIsLentIsNotedAsZeroed) {
  BlockPool pool(4);
  EXPECT_DEATH(pool.NoteZeroed({0, 1}), "is not known");
}

// What the ownership change of a run costs: no work a block. It is below 2 us; the bound leaves room for sanitizers and
// for slow machines, which one piece of work a block, 10,000 of them, exceeds all the same.
TEST(LendingTest, LendingCostsTheSameForOneBlockAndForTenThousand) {
  std::map<int32_t, double> cost_ns;
  for (int32_t blocks : {1, 10, 100, 1000, 10000}) {
    BlockPool pool(20000);
    std::vector<BlockRef> held = *pool.Allocate(9000, std::nullopt);
    for (size_t i = 0; i < held.size(); i += 2) held[i] = BlockRef();  // 4,500 runs beside the one that is lent
    double best_ns = 1e12;
    for (int round = 0; round < 200; ++round) {
      const double begin = CpuNanos();
      for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(pool.Lend({20000 - blocks, blocks}));
        pool.TakeBack({20000 - blocks, blocks});
      }
      best_ns = std::min(best_ns, (CpuNanos() - begin) / 100);
    }
    cost_ns[blocks] = best_ns;
    std::printf("lend or take back %5d blocks: %4.0f ns\n", blocks, best_ns);
    EXPECT_LT(best_ns, 20'000);
  }
  EXPECT_LT(cost_ns[10000], 3 * cost_ns[1] + 300);
}

// Where half of the cache is worth keeping it costs more.
TEST_F(KvCacheTiersTest, WhereMostLittleOrNothingIsWorthKeepingToClearCostsTheSameHoweverMuchIsCached) {
  for (const int64_t keep : {-1, 0, 2}) {  // -1: all but one
    std::map<int64_t, double> cost_ns;
    for (const int64_t cached : {100, 10000}) {
      Create(cached + 1);
      Cache(Count(cached * kBlockTokens));
      cache_->KeepCached(keep < 0 ? cached - 1 : keep);
      double best_ns = 1e12;
      for (int round = 0; round < 20; ++round) {
        const double begin = CpuNanos();
        for (int i = 0; i < 10; ++i) ASSERT_TRUE(cache_->ClearForLending({static_cast<int32_t>(cached), 1}, 8));
        best_ns = std::min(best_ns, (CpuNanos() - begin) / 10);
      }
      cost_ns[cached] = best_ns;
    }
    std::printf("clear beside 100 and 10000 cached: %4.0f and %4.0f ns\n", cost_ns[100], cost_ns[10000]);
    EXPECT_LT(cost_ns[10000], 3 * cost_ns[100] + 1000) << keep;
  }
}

}  // namespace
}  // namespace swiftcache::engine::kv
