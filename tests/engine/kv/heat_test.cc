// SPDX-License-Identifier: Apache-2.0
// How much of what lies in a lease was used lately.
#include <gtest/gtest.h>

#include <cstdint>

#include "engine/kv/kv_cache.h"
#include "tests/engine/kv/kv_cache_tiers_fixture.h"

namespace swiftcache::engine::kv {
namespace {

class HeatTest : public KvCacheTiersTest {
 protected:
  // Each of these fills one lease of four blocks.
  HeatTest() {
    Create(8, 8);
    for (RegionId* lease : {&first_, &second_, &empty_}) *lease = cache_->AddRegion(4, "donor");
    for (const int32_t from : {0, 50, 100}) Cache(Count(8, from)), SpillAll();
  }
  void SetUp() override {
    ASSERT_EQ(cache_->region(first_).cached, 4);
    ASSERT_EQ(cache_->region(second_).cached, 4);
    ASSERT_EQ(cache_->region(empty_).cached, 0);
  }
  // The first conversation goes on.
  void Attach(BlockTable& table) { EXPECT_EQ(cache_->Attach(table, "", Count(9)).tokens, 8); }

  RegionId first_, second_, empty_;
};

TEST_F(HeatTest, WhatWasUsedLongerAgoIsColder) {
  EXPECT_GT(cache_->Heat(first_), 0);
  EXPECT_GT(cache_->Heat(second_), cache_->Heat(first_));
  EXPECT_LT(cache_->Heat(second_), 1000);
  EXPECT_EQ(cache_->Heat(empty_), 0);
}

TEST_F(HeatTest, WhatIsInUseOrWasFoundCountsDouble) {
  BlockTable table;
  Attach(table);
  EXPECT_EQ(cache_->Heat(first_), 2000);
  cache_->Release(table);
  EXPECT_LE(cache_->Heat(first_), 2000);
  EXPECT_GT(cache_->Heat(first_), 1500);
}

// There are 8 places here and 12 on lease.
TEST_F(HeatTest, ABlockCountsHalfAfterAsManyUsesAsThereAreBlocks) {
  BlockTable mine;
  Attach(mine);
  cache_->Release(mine);
  EXPECT_GT(cache_->Heat(first_), 1600) << "at most three uses after each: 20 of 23 parts of 2,000";
  BlockTable other;
  for (int i = 0; i < 3; ++i) {  // four blocks, and what lies in between, each taken and let go
    cache_->Attach(other, "", Count(9, 50));
    cache_->Release(other);
  }
  EXPECT_NEAR(static_cast<double>(cache_->Heat(first_)), 1000, 100);
}

TEST_F(HeatTest, WhatNobodyUsesIsCold) {
  const int64_t before = cache_->Heat(first_);
  BlockTable table;
  for (int i = 0; i < 1000; ++i) {
    cache_->Attach(table, "", Count(9, 50));
    cache_->Release(table);
  }
  EXPECT_LT(cache_->Heat(first_), before / 50) << "thousands of uses, of twenty blocks";
  EXPECT_GT(cache_->Heat(first_), 0);
  EXPECT_GT(cache_->Heat(second_), 1500);
}

}  // namespace
}  // namespace swiftcache::engine::kv
