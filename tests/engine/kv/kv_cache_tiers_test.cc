// SPDX-License-Identifier: Apache-2.0
// The KV cache with leases, each rule by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "tests/engine/kv/kv_cache_tiers_fixture.h"

namespace swiftcache::engine::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(KvCacheTiersTest, ColdBlocksGoToALeaseInsteadOfBeingEvicted) {
  Create(4);
  const RegionId lease = cache_->AddRegion(4);
  Cache(Count(8));
  BlockTable table;
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kWait);
  const std::vector<Move> moves = cache_->TakeMoves(100, 100);
  ASSERT_THAT(moves, SizeIs(2));
  EXPECT_EQ(moves[0].from, (Place{kLocalRegion, 0})) << "the least recently used first";
  EXPECT_EQ(moves[0].to, (Place{lease, 0}));
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kWait) << "until they have arrived";
  EXPECT_THAT(cache_->TakeMoves(100, 100), IsEmpty()) << "which is enough";
  for (const Move& move : moves) EXPECT_TRUE(cache_->FinishMove(move));
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kDone);
  EXPECT_EQ(cache_->evicted_total(), 0);
  BlockTable again;
  const KvCache::Attached found = cache_->Attach(again, "", Count(9));
  EXPECT_EQ(found.tokens, 8);
  EXPECT_EQ(found.leased_tokens, 4);
  EXPECT_THAT(Local(again), ElementsAre(false, false, true, true));
  EXPECT_EQ(cache_->LeasedBlocks(again), 2);
  EXPECT_TRUE(cache_->ReadersOf(lease).Has(again));
  EXPECT_FALSE(cache_->ReadersOf(lease).Has(table));
  Check({&table, &again});
}

TEST_F(KvCacheTiersTest, AWatermarkStaysFreeAheadOfTheNeed) {
  Create(8, 3);
  cache_->AddRegion(2);
  Cache(Count(12));
  EXPECT_EQ(cache_->local().free, 2);
  EXPECT_THAT(cache_->TakeMoves(100, 100), SizeIs(1));
  EXPECT_THAT(cache_->TakeMoves(100, 100), IsEmpty()) << "one is on its way";
  Create(8, 100);
  EXPECT_EQ(cache_->watermark(), 4) << "at most half";
  cache_ = std::make_unique<KvCache>(
      KvCache::Options{.num_blocks = 80, .block_tokens = kBlockTokens, .max_chunk_tokens = 16});
  EXPECT_EQ(cache_->watermark(), 16) << "two chunks";
}

TEST_F(KvCacheTiersTest, IdleBlocksAreSpilledBeforeThoseInUse) {
  Create(6);
  cache_->AddRegion(10);
  BlockTable running, more;
  Run(running, Count(6));
  Cache(Count(6, 50));
  EXPECT_EQ(cache_->Grow(more, 8), Growth::kWait);
  EXPECT_EQ(Spill(), 4);
  EXPECT_THAT(Local(running), ElementsAre(false, true, true));
  EXPECT_EQ(cache_->Grow(more, 8), Growth::kDone);
  Check({&running, &more});
}

TEST_F(KvCacheTiersTest, WithFullLeasesTheLeastRecentlyUsedLeafGoesWhereverItLies) {
  Create(2, 1);
  cache_->AddRegion(1);
  Cache(Count(2));
  Cache(Count(2, 50));
  EXPECT_EQ(Spill(), 1) << "the older one is in the lease now";
  BlockTable table;
  ASSERT_EQ(cache_->Grow(table, 2), Growth::kDone);
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kWait);
  EXPECT_EQ(Found(Count(3)), 0) << "evicted from the lease";
  EXPECT_EQ(Found(Count(3, 50)), 1);
  EXPECT_EQ(cache_->evicted_total(), 1);
  EXPECT_EQ(Spill(), 1);
  EXPECT_EQ(cache_->Grow(table, 4), Growth::kDone);
  EXPECT_EQ(cache_->Grow(table, 6), Growth::kNoRoom) << "nothing that may be spilled is left";
  EXPECT_EQ(Found(Count(3, 50)), 1) << "so nothing is evicted either";
}

// Nobody should have to wait for a spill then.
TEST_F(KvCacheTiersTest, FullLeasesKeepTheWatermarkFreeByEvictions) {
  Create(8, 3);
  cache_->AddRegion(3);
  Cache(Count(6));
  Cache(Count(10, 50));
  EXPECT_EQ(Spill(), 3) << "the older three";
  Cache(Count(4, 90));
  cache_->SetPotentialRegionBlocks(5, /*reserved=*/0, /*leasable=*/2);
  EXPECT_EQ(Spill(), 0);
  EXPECT_EQ(cache_->evicted_total(), 0) << "more may be leased: nothing is given up";
  cache_->SetPotentialRegionBlocks(3, /*reserved=*/0, /*leasable=*/0);
  EXPECT_EQ(Spill(), 2);
  EXPECT_EQ(cache_->evicted_total(), 2);
  EXPECT_EQ(Found(Count(7)), 1) << "the coldest leaves made room in the lease";
  EXPECT_EQ(Found(Count(11, 50)), 5) << "for the next";
  EXPECT_EQ(cache_->local().free, 3);
}

TEST_F(KvCacheTiersTest, NothingIsEvictedForSpillsThatCannotBe) {
  Create(4, 2);
  cache_->AddRegion(2);
  Cache(Count(4));
  BlockTable table;
  Run(table, Count(4, 50), /*local_only=*/true);
  EXPECT_EQ(Spill(), 2);
  ASSERT_EQ(cache_->Grow(table, 8), Growth::kDone);
  EXPECT_EQ(Spill(), 0);
  EXPECT_EQ(Found(Count(5)), 2) << "what is in own memory stays there, so nothing makes way for it";
  Check({&table});
}

TEST_F(KvCacheTiersTest, WithLeasesItCachesNoLessThanWithout) {
  Create(8, 4);
  cache_->AddRegion(1);
  Cache(Count(16));
  EXPECT_EQ(Spill(), 1);
  EXPECT_EQ(Found(Count(17)), 8);
  EXPECT_EQ(Spill(), 0) << "one place is free, and no more for the sake of a lease of one";
  EXPECT_EQ(Found(Count(17)), 8);
}

TEST_F(KvCacheTiersTest, ObtainCountsWhatIsThereAndMakesRoomForTheRest) {
  Create(6);
  cache_->AddRegion(6);
  Cache(Count(8));
  EXPECT_EQ(cache_->Obtain(5), 2);
  EXPECT_EQ(Spill(), 3);
  EXPECT_EQ(cache_->Obtain(5), 5);
}

TEST_F(KvCacheTiersTest, ABlockGivenUpOnItsWayKeepsBothPlacesUntilTheMoveEnds) {
  for (bool arrives : {true, false}) {
    Create(2, 1);
    const RegionId lease = cache_->AddRegion(2);
    Cache(Count(4));
    const std::vector<Move> moves = cache_->TakeMoves(1, 1);
    ASSERT_THAT(moves, SizeIs(1));
    ASSERT_EQ(cache_->DropRegion(cache_->AddRegion(1)), 0) << "another's moves do not keep it";
    cache_->RegionDraining(lease);
    BlockTable table;
    ASSERT_EQ(cache_->Grow(table, 2), Growth::kDone) << "the leaf was evicted";
    EXPECT_EQ(cache_->Grow(table, 4), Growth::kWait) << "the other is moving";
    if (arrives) {
      EXPECT_FALSE(cache_->FinishMove(moves[0])) << "it stays out of a lease that drains";
    } else {
      cache_->AbortMove(moves[0]);
    }
    EXPECT_EQ(cache_->region(lease).free, 2);
    EXPECT_EQ(cache_->Grow(table, 4), Growth::kDone);
    Check({&table});
  }
}

TEST_F(KvCacheTiersTest, WhoRunsFromOwnedMemoryNeitherAttachesNorGivesToLeases) {
  Create(6, 1);
  cache_->AddRegion(6);
  Cache(Count(8));
  BlockTable filler;
  EXPECT_EQ(cache_->Grow(filler, 8), Growth::kWait);
  EXPECT_EQ(Spill(), 2);
  cache_->Release(filler);
  EXPECT_EQ(cache_->Measure("", Count(9)).blocks, 4);
  EXPECT_EQ(cache_->Measure("", Count(9)).leased_blocks, 2);
  EXPECT_EQ(cache_->Measure("", Count(9), /*local_only=*/true).blocks, 0);
  BlockTable table;
  Run(table, Count(8), /*local_only=*/true);
  EXPECT_THAT(Local(table), ElementsAre(true, true, true, true)) << "what it computed took the place of the lease's";
  Check({&table});
  EXPECT_EQ(cache_->local().free, 2);
  BlockTable more;
  ASSERT_EQ(cache_->Grow(more, 4), Growth::kDone);
  EXPECT_EQ(cache_->Grow(more, 6), Growth::kNoRoom) << "its blocks are not spilled";
  cache_->Release(table);
  EXPECT_EQ(cache_->Grow(more, 6), Growth::kWait) << "now they may be";
}

TEST_F(KvCacheTiersTest, ABlockOnItsWayStaysForWhoRunsFromOwnedMemory) {
  Create(2, 1);
  cache_->AddRegion(2);
  Cache(Count(4));
  const std::vector<Move> moves = cache_->TakeMoves(1, 1);
  BlockTable table;
  EXPECT_EQ(cache_->Attach(table, "", Count(5), /*local_only=*/true).tokens, 4);
  EXPECT_FALSE(cache_->FinishMove(moves[0]));
  Check({&table});
}

TEST_F(KvCacheTiersTest, NobodyAttachesWhatLiesInALeaseThatDrains) {
  Create(4, 1);
  const RegionId lease = cache_->AddRegion(4);
  Cache(Count(8));
  BlockTable filler;
  EXPECT_EQ(cache_->Grow(filler, 4), Growth::kWait);
  EXPECT_EQ(Spill(), 2);
  cache_->RegionDraining(lease);
  EXPECT_EQ(Found(Count(9)), 0);
  BlockTable table;
  Run(table, Count(4));
  EXPECT_THAT(Local(table), ElementsAre(true, true)) << "computed again, and so saved from the lease";
  EXPECT_EQ(Found(Count(9)), 4) << "for everybody, with what follows";
  EXPECT_EQ(cache_->DropRegion(lease), 0);
  EXPECT_EQ(Found(Count(9)), 4);
  Check({&table});
}

TEST_F(KvCacheTiersTest, WhatLiesInALeaseThatDrainsGivesNoRoomWhenItIsReleased) {
  Create(4);
  const RegionId lease = cache_->AddRegion(4);
  BlockTable table, same;
  Run(table, Count(8));
  const int64_t leased = Spill();
  ASSERT_GT(leased, 0);
  cache_->Attach(same, "", Count(9));
  EXPECT_EQ(cache_->HeldByNobodyElse(std::vector<const BlockTable*>{&table}), 0);
  EXPECT_EQ(cache_->HeldByNobodyElse(std::vector<const BlockTable*>{&table, &same}), 4);
  cache_->RegionDraining(lease);
  EXPECT_EQ(cache_->HeldByNobodyElse(std::vector<const BlockTable*>{&table, &same}), 4 - leased);
}

TEST_F(KvCacheTiersTest, DrainingSavesBlocksInUseThenThoseLastUsed) {
  Create(8, 4);
  const RegionId lease = cache_->AddRegion(8);
  BlockTable running;
  Run(running, Count(4));
  Cache(Count(4, 50));
  Cache(Count(4, 90));
  SpillAll();
  BlockTable filler;
  while (cache_->Grow(filler, 16) == Growth::kWait) Spill();
  EXPECT_EQ(cache_->region(lease).used + cache_->region(lease).cached, 6);
  cache_->Release(filler);
  BlockTable touch;
  cache_->Attach(touch, "", Count(5, 50));  // the hottest of the idle ones
  cache_->Release(touch);
  const RegionId other = cache_->AddRegion(3);
  cache_->RegionDraining(lease);
  std::vector<Move> moves = cache_->PlanDrain(lease, 4);
  ASSERT_THAT(moves, SizeIs(4));
  EXPECT_EQ(moves[0].id, running[0]);
  EXPECT_EQ(moves[1].id, running[1]);
  EXPECT_TRUE(moves[0].to.local() && moves[1].to.local());
  EXPECT_TRUE(moves[2].to.region == other && moves[3].to.region == other);
  const std::vector<Move> rest = cache_->PlanDrain(lease, 100);
  moves.insert(moves.end(), rest.begin(), rest.end());
  for (const Move& move : moves) EXPECT_TRUE(cache_->FinishMove(move));
  EXPECT_EQ(Found(Count(5, 50)), 2);
  EXPECT_FALSE(cache_->ReadersOf(lease).Has(running));
  cache_->DropRegion(lease);
  Check({&running});
}

TEST_F(KvCacheTiersTest, IdleBlocksDoNotFleeToTheSameLender) {
  Create(4, 4);
  const RegionId lease = cache_->AddRegion(4, "donor");
  Cache(Count(4));
  Cache(Count(4, 50));
  SpillAll();
  ASSERT_GT(cache_->region(lease).cached, 0);
  const RegionId next = cache_->AddRegion(4, "donor");
  cache_->RegionDraining(lease);
  EXPECT_THAT(cache_->PlanDrain(lease, 4), SizeIs(0)) << "it may want the other lease back too";
  EXPECT_EQ(cache_->evicted_total(), 0) << "which would help nobody";
  EXPECT_EQ(cache_->region(next).free, 4);
  const RegionId other = cache_->AddRegion(1, "another");
  const std::vector<Move> moves = cache_->PlanDrain(lease, 4);
  ASSERT_THAT(moves, SizeIs(1));
  EXPECT_EQ(moves[0].to.region, other);
  EXPECT_TRUE(cache_->FinishMove(moves[0]));
  Check({});
}

TEST_F(KvCacheTiersTest, WhatFollowsFromTheBlocksOfALostLeaseIsFoundBehindTheHole) {
  Create(6, 1);
  const RegionId lease = cache_->AddRegion(1);
  Cache(Count(6));
  Cache(Count(4, 50));
  BlockTable filler;
  EXPECT_EQ(cache_->Grow(filler, 4), Growth::kWait);
  EXPECT_EQ(Spill(), 1);
  cache_->RegionDraining(lease);
  EXPECT_EQ(cache_->DropRegion(lease), 1);
  EXPECT_EQ(Found(Count(7)), 0);
  EXPECT_EQ(Found(Count(5, 50)), 2);
  Check({&filler});
  BlockTable table;
  const std::vector<int32_t> tokens = Count(7);
  EXPECT_EQ(cache_->Attach(table, "", tokens, false).tokens, 0);
  EXPECT_EQ(cache_->UnknownTokens(table, tokens, 0, 100), 2) << "then it knows the rest";
  EXPECT_EQ(cache_->UnknownTokens(table, tokens, 0, 1), 1) << "no more was asked for";
  ASSERT_EQ(cache_->Grow(table, 2), Growth::kDone);
  EXPECT_EQ(cache_->AttachMore(table, tokens, 1).tokens, 0) << "half a block is computed";
  cache_->Commit(table, tokens, 2);
  EXPECT_EQ(cache_->AttachMore(table, tokens, 2).tokens, 4);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(cache_->UnknownTokens(table, tokens, 6, 100), 1);
  Check({&filler, &table});
}

// A plan asks for each prompt, and more than once.
TEST_F(KvCacheTiersTest, WhatAPromptLacksCostsWhatIsAskedForHoweverLongTheHoleIs) {
  std::map<int64_t, double> cost_ns;
  for (const int64_t lost : {100, 10000}) {
    Create(2 * lost + 4, lost + 1);
    const RegionId lease = cache_->AddRegion(lost);
    const Tokens tokens = Count((lost + 1) * kBlockTokens);
    Cache(tokens);
    Cache(Count((lost + 3) * kBlockTokens, 1'000'000));
    ASSERT_EQ(Spill(lost), lost);
    cache_->RegionDraining(lease);
    ASSERT_EQ(cache_->DropRegion(lease), lost);
    BlockTable table;
    Tokens longer = tokens;
    longer.push_back(5);
    ASSERT_EQ(cache_->Attach(table, "", longer).tokens, 0);
    EXPECT_EQ(cache_->UnknownTokens(table, longer, 0, 1'000'000), lost * kBlockTokens);
    double best_ns = 1e12;
    for (int round = 0; round < 20; ++round) {
      const double begin = CpuNanos();
      for (int i = 0; i < 50; ++i) ASSERT_EQ(cache_->UnknownTokens(table, longer, 0, 16), 16);
      best_ns = std::min(best_ns, (CpuNanos() - begin) / 50);
    }
    cost_ns[lost] = best_ns;
  }
  std::printf("before a hole of 100 and of 10000: %4.0f and %4.0f ns\n", cost_ns[100], cost_ns[10000]);
  EXPECT_LT(cost_ns[10000], 5 * cost_ns[100] + 1000);
}

TEST_F(KvCacheTiersTest, SlotsThatAreReservedByNowAreNotTakenFromWhatLeasesMayComeTo) {
  Create(100);
  cache_->SetPotentialRegionBlocks(200, /*reserved=*/40, /*leasable=*/200);
  EXPECT_EQ(cache_->num_potential(), 100 + 200 - 40);
  ASSERT_EQ(cache_->ReserveLocal(20), Growth::kDone);
  EXPECT_EQ(cache_->num_potential(), 100 + 200 - 40);
  ASSERT_EQ(cache_->ReserveLocal(30), Growth::kDone);
  EXPECT_EQ(cache_->num_potential(), 50 + 200);
  cache_->ReleaseReserved(50);
  EXPECT_EQ(cache_->num_potential(), 100 + 200 - 40);
}

TEST_F(KvCacheTiersTest, ALeaseThatATableTouchesIsNotDropped) {
  Create(2, 1);
  const RegionId lease = cache_->AddRegion(2);
  BlockTable table;
  Run(table, Count(4));
  EXPECT_EQ(Spill(), 1);
  cache_->RegionDraining(lease);
  EXPECT_DEATH(cache_->DropRegion(lease), "in use");
}

TEST_F(KvCacheTiersTest, BlocksInUseComeHomeWhereThereIsPlenty) {
  Create(8, 2);
  cache_->AddRegion(8);
  BlockTable table, filler;
  Run(table, Count(8));
  while (cache_->Grow(filler, 14) == Growth::kWait) Spill();
  EXPECT_EQ(cache_->LeasedBlocks(table), 3);
  EXPECT_THAT(cache_->TakeMoves(100, 100), SizeIs(1)) << "for the watermark: " << cache_->local().free;
  cache_->Release(filler);
  const std::vector<Move> home = cache_->TakeMoves(2, 2);
  ASSERT_THAT(home, SizeIs(2));
  for (const Move& move : home) EXPECT_TRUE(move.to.local() && cache_->FinishMove(move));
  Check({&table});
}

TEST_F(KvCacheTiersTest, ReservedBlocksAreNobodysUntilGivenBack) {
  Create(6, 1);
  BlockTable table;
  ASSERT_EQ(cache_->ReserveLocal(4), Growth::kDone);
  EXPECT_THAT(cache_->reserved(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(cache_->num_usable_local(), 2);
  EXPECT_EQ(cache_->Grow(table, 6), Growth::kNoRoom);
  Check({});
  cache_->ReleaseReserved(3);
  EXPECT_THAT(cache_->reserved(), ElementsAre(0));
  EXPECT_EQ(cache_->Grow(table, 6), Growth::kDone);
  EXPECT_EQ(cache_->ReserveLocal(3), Growth::kNoRoom);
  Check({&table});
}

TEST_F(KvCacheTiersTest, ItWishesForALeaseWhenEvictionsAreNearOrHappened) {
  Create(8, 2);
  EXPECT_EQ(cache_->TakeLeaseWish(0), 0);
  Cache(Count(14));
  EXPECT_EQ(cache_->TakeLeaseWish(0), 1) << "one under the watermark";
  Cache(Count(6, 50));
  EXPECT_EQ(cache_->TakeLeaseWish(0), 4) << "two were evicted, none is free";
  EXPECT_EQ(cache_->TakeLeaseWish(0), 2);
  cache_->NoteWish(20);
  EXPECT_EQ(cache_->TakeLeaseWish(0), 12) << "a sequence needs more than there is";
  cache_->AddRegion(12);
  cache_->NoteWish(20);
  EXPECT_EQ(cache_->TakeLeaseWish(0), 0);
  cache_->NoteWish(20);
  EXPECT_EQ(cache_->TakeLeaseWish(5), 5);
  cache_->NoteWish(8);
  EXPECT_EQ(cache_->TakeLeaseWish(100), 0) << "own memory is enough";
}

}  // namespace
}  // namespace swiftcache::engine::kv
