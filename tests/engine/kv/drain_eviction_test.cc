// SPDX-License-Identifier: Apache-2.0
// What makes way for blocks in use that leave a lease.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "tests/engine/kv/kv_cache_tiers_fixture.h"

namespace swiftcache::engine::kv {
namespace {

using ::testing::SizeIs;

class DrainEvictionTest : public KvCacheTiersTest {
 protected:
  // A sequence's blocks lie in one lease of a donor, who lends another.
  void Begin() {
    Create(4, 1);
    leaving_ = cache_->AddRegion(4, "donor");
    next_ = cache_->AddRegion(8, "donor");
    Run(running_, Count(8));
    ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kWait);
    ASSERT_EQ(Spill(), 4);
  }
  // There lies a conversation that may go on.
  void BeginWithConversation() {
    ASSERT_NO_FATAL_FAILURE(Begin());
    Cache(kConversation);
    ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kWait);
    ASSERT_EQ(Spill(), 4);
    ASSERT_TRUE(cache_->region(leaving_).used == 4 && cache_->region(next_).cached == 4);
  }
  bool ConversationIsFound() const { return cache_->Measure("", kAgain).blocks == 4; }

  const Tokens kConversation = Count(8, 50), kAgain = Count(9, 50);
  RegionId leaving_, next_;
  BlockTable running_, filler_;
};

TEST_F(DrainEvictionTest, NothingIsEvictedWhereThatGivesNoRoom) {
  ASSERT_NO_FATAL_FAILURE(BeginWithConversation());
  ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kDone);
  cache_->RegionDraining(leaving_);
  EXPECT_THAT(cache_->PlanDrain(leaving_, 4), SizeIs(0)) << "the donor may want the other lease back too";
  EXPECT_TRUE(ConversationIsFound());
  EXPECT_EQ(cache_->evicted_total(), 0);
  Check({&running_, &filler_});
}

// Nor is it where another donor lends, and all that lies there is in use.
TEST_F(DrainEvictionTest, NothingIsEvictedWhereWhatWouldGiveRoomIsInUse) {
  Create(4, 1);
  leaving_ = cache_->AddRegion(4, "donor");
  Run(running_, Count(8));
  ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kWait);
  ASSERT_EQ(Spill(), 4);
  next_ = cache_->AddRegion(4, "donor");
  Cache(kConversation);
  ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kWait);
  ASSERT_EQ(Spill(), 4);
  const RegionId refuge = cache_->AddRegion(1, "another");
  BlockTable there;
  Run(there, Count(2, 70));
  ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kWait);
  ASSERT_EQ(Spill(), 1);
  ASSERT_TRUE(cache_->region(refuge).used == 1 && cache_->region(next_).cached == 4);
  ASSERT_EQ(cache_->Grow(filler_, 8), Growth::kDone);
  cache_->RegionDraining(leaving_);
  EXPECT_THAT(cache_->PlanDrain(leaving_, 4), SizeIs(0));
  EXPECT_TRUE(ConversationIsFound());
  EXPECT_EQ(cache_->evicted_total(), 0);
  Check({&running_, &filler_, &there});
}

TEST_F(DrainEvictionTest, WhatIsColderElsewhereStaysWhereThatGivesNoRoom) {
  ASSERT_NO_FATAL_FAILURE(BeginWithConversation());
  Cache(Count(8, 90));
  cache_->RegionDraining(leaving_);
  const std::vector<Move> moves = cache_->PlanDrain(leaving_, 2);
  ASSERT_THAT(moves, SizeIs(2));
  EXPECT_TRUE(moves[0].to.local() && moves[1].to.local());
  EXPECT_TRUE(ConversationIsFound());
  EXPECT_EQ(cache_->evicted_total(), 2);
  for (const Move& move : moves) EXPECT_TRUE(cache_->FinishMove(move));
  Check({&running_, &filler_});
}

TEST_F(DrainEvictionTest, WhatLeadsToOthersMakesWayAndTheyStay) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  Cache(Count(4, 50));
  BlockTable beginning;
  cache_->Attach(beginning, "", Count(3, 50));
  cache_->Release(beginning);
  ASSERT_EQ(cache_->Grow(filler_, 6), Growth::kWait);
  ASSERT_EQ(Spill(), 1);
  ASSERT_EQ(cache_->Grow(filler_, 6), Growth::kDone);
  ASSERT_TRUE(cache_->local().cached == 1 && cache_->region(next_).cached == 1) << "its end is colder";
  cache_->RegionDraining(leaving_);
  const std::vector<Move> moves = cache_->PlanDrain(leaving_, 4);
  ASSERT_THAT(moves, SizeIs(1));
  EXPECT_EQ(cache_->evicted_total(), 1);
  EXPECT_TRUE(cache_->FinishMove(moves[0]));
  EXPECT_EQ(cache_->region(next_).cached, 1) << "who computes the beginning again finds it";
  Check({&running_, &filler_});
}

}  // namespace
}  // namespace swiftcache::engine::kv
