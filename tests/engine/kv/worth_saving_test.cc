// SPDX-License-Identifier: Apache-2.0
// What of a lease is worth saving: what prompts have found, and what is expected to be.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "tests/engine/kv/kv_cache_tiers_fixture.h"

namespace swiftcache::engine::kv {
namespace {

using WorthSavingTest = KvCacheTiersTest;

TEST_F(WorthSavingTest, WhatPromptsHaveFoundIsWorthSavingWhereItHasSomewhereToGo) {
  Create(4, 4);
  const RegionId lease = cache_->AddRegion(4, "donor"), other = cache_->AddRegion(2, "another");
  Cache(Count(4));
  Cache(Count(4, 50));
  SpillAll();
  ASSERT_EQ(cache_->region(lease).cached, 2);
  EXPECT_EQ(cache_->WorthSaving(lease), 0) << "nobody has asked for it again";
  BlockTable again;
  cache_->Attach(again, "", Count(5));
  EXPECT_EQ(cache_->WorthSaving(lease), 0) << "it is in use";
  cache_->Release(again);
  EXPECT_EQ(cache_->WorthSaving(lease), 2);
  Check({});
  cache_->RegionDraining(lease);
  const std::vector<Move> moves = cache_->PlanDrain(lease, 2);
  EXPECT_EQ(cache_->WorthSaving(lease), 0) << "all of it is on its way";
  Check({});
  for (const Move& move : moves) EXPECT_TRUE(cache_->FinishMove(move));
  EXPECT_EQ(cache_->WorthSaving(other), 0) << "it has nowhere to go: nobody else lends";
  (void)cache_->AddRegion(1, "third");
  EXPECT_EQ(cache_->WorthSaving(other), 2);
  cache_->DropRegion(lease);
  Check({});
}

TEST_F(WorthSavingTest, WhatPromptsHaveFoundLeavesBeforeWhatWasUsedSince) {
  Create(4, 4);
  const RegionId lease = cache_->AddRegion(8, "donor");
  Cache(Count(4));
  BlockTable again;
  cache_->Attach(again, "", Count(5));
  const std::vector<BlockId> found = {again[0], again[1]};
  cache_->Release(again);
  for (const int32_t from : {50, 60, 70}) {
    Cache(Count(4, from));
    SpillAll();
  }
  ASSERT_EQ(cache_->region(lease).cached, 6);
  (void)cache_->AddRegion(3, "another");
  cache_->RegionDraining(lease);
  std::vector<BlockId> first;
  for (const Move& move : cache_->PlanDrain(lease, 2)) first.push_back(move.id);
  EXPECT_EQ(first, found);
}

// A lease in no hurry is attached to while it empties, and may be in a hurry then.
TEST_F(WorthSavingTest, WhatIsAttachedWhileALeaseEmptiesLeavesFirst) {
  Create(4, 4);
  const RegionId lease = cache_->AddRegion(6, "donor");
  for (const int32_t from : {50, 60, 70, 80, 90}) {
    Cache(Count(4, from));
    SpillAll();
  }
  ASSERT_EQ(cache_->region(lease).cached, 6);
  (void)cache_->AddRegion(8, "another");
  cache_->RegionDraining(lease, /*attachable=*/true);
  ASSERT_EQ(cache_->PlanDrain(lease, 1).size(), 1u);
  BlockTable coldest;
  cache_->Attach(coldest, "", Count(5, 60));
  ASSERT_EQ(cache_->LeasedBlocks(coldest), 2);
  const std::vector<Move> moves = cache_->PlanDrain(lease, 2);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].id, coldest[0]);
  EXPECT_EQ(moves[1].id, coldest[1]);
  Check({&coldest});
}

// The next turn asks for what this one adds. A prompt that shares its beginning with others is no turn.
TEST_F(WorthSavingTest, WhatGoesOnFromTheEndOfWhatAPromptFoundCountsAsFoundToo) {
  for (const bool shares : {false, true}) {
    Create(8, 8);
    const RegionId lease = cache_->AddRegion(20, "donor");
    (void)cache_->AddRegion(1, "another");
    Tokens next = Count(6);
    if (shares) next[2] = 99;
    for (const Tokens& tokens : {Count(4), next, Count(8, 50), Count(8, 70)}) {
      Cache(tokens);
      SpillAll();
    }
    ASSERT_EQ(cache_->local().cached, 4) << "all that came first lies in the lease";
    EXPECT_EQ(cache_->WorthSaving(lease), shares ? 1 : 3);
    Check({});
  }
}

TEST_F(WorthSavingTest, WhatIsComputedWhereMostIsAskedForAgainIsExpectedToBe) {
  for (const int of_four : {0, 1, 3}) {
    Create(8, 8);
    const RegionId lease = cache_->AddRegion(200, "donor");
    (void)cache_->AddRegion(1, "another");
    for (int i = 0; i < 40; ++i) {
      Cache(Count(4, 10 * i));
      BlockTable next;
      if (i % 4 < of_four) cache_->Attach(next, "", Count(5, 10 * i));
      cache_->Release(next);
      SpillAll();
    }
    const int64_t found = cache_->WorthSaving(lease);
    for (const int32_t from : {1000, 1010, 1020}) Cache(Count(4, from)), SpillAll();
    EXPECT_EQ(cache_->WorthSaving(lease) - found, of_four == 3 ? 6 : 0);
    Check({});
  }
}

TEST_F(WorthSavingTest, WhatWentWithALeaseAndIsAskedForAgainCountsToo) {
  for (const bool again : {false, true}) {
    cache_ = std::make_unique<KvCache>(KvCache::Options{.num_blocks = 8,
                                                        .block_tokens = kBlockTokens,
                                                        .may_borrow = true,
                                                        .measures_reuse = true,
                                                        .watermark_blocks = 8});
    (void)cache_->AddRegion(1, "another");
    for (int i = 0; i < 60; ++i) {
      const RegionId lease = cache_->AddRegion(20, "donor");
      Cache(Count(5, again ? 0 : 10 * i)), SpillAll();
      cache_->RegionDraining(lease);
      cache_->DropRegion(lease);
    }
    const RegionId lease = cache_->AddRegion(20, "donor");
    for (const int32_t from : {2000, 2010, 2020, 2030, 2040, 2050}) Cache(Count(4, from)), SpillAll();
    ASSERT_GT(cache_->region(lease).cached, 0);
    EXPECT_EQ(cache_->WorthSaving(lease) > 0, again);
  }
}

TEST_F(WorthSavingTest, OwnMemoryThatIsFreeIsRoomForAsMuchAsItHas) {
  Create(8, 2);
  const RegionId lease = cache_->AddRegion(8, "donor");
  BlockTable filler;
  Cache(Count(8));
  BlockTable again;
  cache_->Attach(again, "", Count(9));
  cache_->Release(again);
  ASSERT_EQ(cache_->Grow(filler, 8), Growth::kDone);
  SpillAll();
  ASSERT_EQ(cache_->region(lease).cached, 2);
  EXPECT_EQ(cache_->local().free, 2);
  EXPECT_EQ(cache_->WorthSaving(lease), 0) << "as much as is to stay free";
  cache_->Release(filler);
  EXPECT_EQ(cache_->WorthSaving(lease), 2);
}

TEST_F(WorthSavingTest, WhatRunningSequencesShareNobodyHasFound) {
  Create(8, 8);
  const RegionId lease = cache_->AddRegion(8, "donor");
  (void)cache_->AddRegion(8, "another");
  BlockTable first, second;
  Run(first, Count(4));
  cache_->Attach(second, "", Count(5));
  ASSERT_EQ(second.size(), 2);
  cache_->Release(first);
  cache_->Release(second);
  Cache(Count(8, 50));
  SpillAll();
  ASSERT_GE(cache_->region(lease).cached, 2);
  EXPECT_EQ(cache_->WorthSaving(lease), 0);
}

TEST_F(WorthSavingTest, WhatASequenceLeavesForNowIsExpectedToBeFoundByItself) {
  Create(4, 4);
  const RegionId lease = cache_->AddRegion(4, "donor");
  (void)cache_->AddRegion(4, "another");
  BlockTable table;
  Run(table, Count(5));
  ASSERT_EQ(table.size(), 3);
  cache_->ReleaseForNow(table);
  EXPECT_EQ(table.size(), 0);
  Cache(Count(4, 50));
  SpillAll();
  ASSERT_EQ(cache_->region(lease).cached, 2);
  EXPECT_EQ(cache_->WorthSaving(lease), 2);
  Check({});
  cache_->Attach(table, "", Count(5));
  ASSERT_EQ(table.size(), 2);
  cache_->Release(table);
  EXPECT_EQ(cache_->WorthSaving(lease), 0) << "it has been found";
}

TEST_F(WorthSavingTest, WhatASequenceFindsOfItsOwnNobodyHasFound) {
  Create(4, 4);
  const RegionId lease = cache_->AddRegion(4, "donor");
  (void)cache_->AddRegion(4, "another");
  BlockTable table;
  Run(table, Count(4));
  cache_->Release(table);
  Cache(Count(4, 50));
  SpillAll();
  cache_->Attach(table, "", Count(5));
  ASSERT_EQ(table.size(), 2);
  cache_->Release(table);
  ASSERT_EQ(cache_->region(lease).cached, 2);
  EXPECT_EQ(cache_->WorthSaving(lease), 0);
}

}  // namespace
}  // namespace swiftcache::engine::kv
