// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/block_pool.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace swiftcache::engine::kv {
namespace {

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool(4);
  auto three = pool.Allocate(3, std::nullopt);
  ASSERT_TRUE(three.has_value());
  EXPECT_FALSE(pool.Allocate(2, std::nullopt).has_value());
  EXPECT_EQ(pool.local().free, 1);
  EXPECT_EQ(pool.local().used, 3);
}

TEST(BlockPoolTest, ABlockIsUsedThenCachedThenFree) {
  BlockPool pool(2);
  auto blocks = pool.Allocate(1, std::nullopt);
  BlockRef sequence = std::move(blocks->front());
  BlockRef cache = sequence.Share(Holder::kCache);
  EXPECT_EQ(pool.local().used, 1);
  EXPECT_FALSE(cache.idle());
  sequence = BlockRef();
  EXPECT_EQ(pool.local().used, 0);
  EXPECT_EQ(pool.local().cached, 1);
  EXPECT_TRUE(cache.idle());
  EXPECT_TRUE(pool.CheckInvariants().ok());
  cache = BlockRef();
  EXPECT_EQ(pool.local().free, 2);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPoolTest, TwoSequencesShareOneBlock) {
  BlockPool pool(2);
  auto blocks = pool.Allocate(1, std::nullopt);
  BlockRef second = blocks->front().Share(Holder::kSequence);
  blocks.reset();
  EXPECT_EQ(pool.local().used, 1);
  EXPECT_EQ(pool.sequence_holds(second.id()), 1);
}

TEST(BlockPoolTest, MovingAHoldDoesNotEndIt) {
  BlockPool pool(1);
  auto blocks = pool.Allocate(1, std::nullopt);
  BlockRef a = std::move(blocks->front());
  BlockRef b = std::move(a);
  blocks.reset();
  EXPECT_EQ(pool.local().used, 1);
  BlockRef& same = b;
  b = std::move(same);
  EXPECT_EQ(pool.local().used, 1);
}

TEST(BlockPoolTest, ABlockThatMovesIsTheSameFillingAndOneThatIsAllocatedAgainIsAnother) {
  BlockPool pool(1);
  std::vector<BlockRef> blocks = *pool.Allocate(1, std::nullopt);
  const BlockId id = blocks[0].id();
  const Filling first = pool.filling(id);
  for (const RegionId to : {pool.AddRegion(1), kLocalRegion}) {
    EXPECT_TRUE(pool.FinishMove(*pool.BeginMove(id, to)));
    EXPECT_EQ(pool.filling(id), first);
  }
  blocks.clear();
  blocks = *pool.Allocate(1, std::nullopt);
  EXPECT_NE(pool.filling(blocks[0].id()), first);
}

TEST(BlockPoolTest, WhoKeepsPlacesHearsOfEachBlockInUseThatChangedItsOwn) {
  BlockPool pool(6);
  const RegionId lease = pool.AddRegion(4);
  auto blocks = *pool.Allocate(3, std::nullopt);
  std::vector<BlockRef> cached;
  for (const BlockRef& block : blocks) cached.push_back(block.Share(Holder::kCache));
  blocks.pop_back();  // the third is idle
  for (const BlockRef& block : cached) EXPECT_TRUE(pool.FinishMove(*pool.BeginMove(block.id(), lease)));
  auto heard = [&pool, seen = uint64_t{0}]() mutable {
    std::vector<BlockId> ids;
    for (; seen < pool.moved().end(); ++seen) ids.push_back(pool.moved()[seen]);
    return ids;
  };
  EXPECT_EQ(heard(), (std::vector<BlockId>{blocks[0].id(), blocks[1].id()}));
  const Move back = *pool.BeginMove(blocks[0].id(), kLocalRegion);
  EXPECT_TRUE(heard().empty()) << "it lies where it did";
  pool.AbortMove(back);
  EXPECT_TRUE(heard().empty());

  auto own = *pool.Allocate(2, std::nullopt);
  pool.SwapPlaces(own[0].id(), blocks[1].id());
  EXPECT_EQ(heard(), (std::vector<BlockId>{own[0].id(), blocks[1].id()}));
  EXPECT_TRUE(own[1].GiveWayTo(blocks[1]));
  EXPECT_EQ(heard(), std::vector<BlockId>{blocks[1].id()}) << "it is another in its table";
}

TEST(BlockPoolTest, ARegionIsUsedWhileASequenceHoldsABlockThereAndWhenOneComes) {
  BlockPool pool(2);
  const RegionId lease = pool.AddRegion(1);
  EXPECT_FALSE(pool.TakeUse(lease));
  std::vector<BlockRef> sequence = *pool.Allocate(1, std::nullopt);
  const BlockRef cached = sequence[0].Share(Holder::kCache);
  sequence.clear();
  const Move move = *pool.BeginMove(cached.id(), lease);
  EXPECT_FALSE(pool.TakeUse(lease)) << "it is under way";
  ASSERT_TRUE(pool.FinishMove(move));
  EXPECT_TRUE(pool.TakeUse(lease));
  EXPECT_FALSE(pool.TakeUse(lease)) << "the cache alone is no use";
  {
    const BlockRef held = cached.Share(Holder::kSequence);
    EXPECT_TRUE(pool.TakeUse(lease));
    EXPECT_TRUE(pool.TakeUse(lease)) << "it is held still";
  }
  EXPECT_TRUE(pool.TakeUse(lease)) << "it was, a moment ago";
  EXPECT_FALSE(pool.TakeUse(lease));
}

TEST(BlockPoolDeathTest, TheCacheHoldsABlockOnce) {
  BlockPool pool(1);
  auto blocks = pool.Allocate(1, std::nullopt);
  BlockRef cache = blocks->front().Share(Holder::kCache);
  EXPECT_DEATH((void)cache.Share(Holder::kCache), "in the cache already");
}

}  // namespace
}  // namespace swiftcache::engine::kv
