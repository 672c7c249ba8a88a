// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/block_allocator.h"

#include <gtest/gtest.h>

#include <utility>

namespace swiftcache::engine::kv {
namespace {

TEST(BlockAllocatorTest, AllocatesAllOrNothing) {
  BlockAllocator allocator(4);
  auto three = allocator.Allocate(3, std::nullopt);
  ASSERT_TRUE(three.has_value());
  EXPECT_FALSE(allocator.Allocate(2, std::nullopt).has_value());
  EXPECT_EQ(allocator.num_free(), 1);
  EXPECT_EQ(allocator.num_used(), 3);
}

TEST(BlockAllocatorTest, ABlockIsUsedThenCachedThenFree) {
  BlockAllocator allocator(2);
  auto blocks = allocator.Allocate(1, std::nullopt);
  BlockRef sequence = std::move(blocks->front());
  BlockRef cache = sequence.Share(Holder::kCache);
  EXPECT_EQ(allocator.num_used(), 1);
  EXPECT_FALSE(cache.idle());
  sequence = BlockRef();
  EXPECT_EQ(allocator.num_used(), 0);
  EXPECT_EQ(allocator.num_cached(), 1);
  EXPECT_TRUE(cache.idle());
  EXPECT_TRUE(allocator.CheckInvariants().ok());
  cache = BlockRef();
  EXPECT_EQ(allocator.num_free(), 2);
  EXPECT_TRUE(allocator.CheckInvariants().ok());
}

TEST(BlockAllocatorTest, TwoSequencesShareOneBlock) {
  BlockAllocator allocator(2);
  auto blocks = allocator.Allocate(1, std::nullopt);
  BlockRef second = blocks->front().Share(Holder::kSequence);
  blocks.reset();
  EXPECT_EQ(allocator.num_used(), 1);
  EXPECT_EQ(allocator.sequence_holds(second.id()), 1);
}

TEST(BlockAllocatorTest, MovingAHoldDoesNotEndIt) {
  BlockAllocator allocator(1);
  auto blocks = allocator.Allocate(1, std::nullopt);
  BlockRef a = std::move(blocks->front());
  BlockRef b = std::move(a);
  blocks.reset();
  EXPECT_EQ(allocator.num_used(), 1);
  BlockRef& same = b;
  b = std::move(same);
  EXPECT_EQ(allocator.num_used(), 1);
}

TEST(BlockAllocatorDeathTest, TheCacheHoldsABlockOnce) {
  BlockAllocator allocator(1);
  auto blocks = allocator.Allocate(1, std::nullopt);
  BlockRef cache = blocks->front().Share(Holder::kCache);
  EXPECT_DEATH((void)cache.Share(Holder::kCache), "in the cache already");
}

}  // namespace
}  // namespace swiftcache::engine::kv
