// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_staging.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/fakes/random_seed.h"

namespace swiftcache::engine::transport {
namespace {

TEST(ShmStagingRingTest, RunsFollowEachOtherAndWrapWhole) {
  ShmStagingRing ring(100);
  EXPECT_EQ(ring.Push(40), 0);
  EXPECT_EQ(ring.Push(40), 40);
  EXPECT_EQ(ring.Push(40), std::nullopt);
  ring.Free(0);
  EXPECT_EQ(ring.Push(40), 0);
  EXPECT_EQ(ring.Push(1), std::nullopt);
  ring.Free(40);
  ring.Free(0);
  EXPECT_EQ(ring.Push(100), 0);
  EXPECT_FALSE(ring.HasRoom(1));
}

TEST(ShmStagingRingTest, WhatIsFreedOutOfOrderComesBackInOrder) {
  ShmStagingRing ring(100);
  ASSERT_EQ(ring.Push(50), 0);
  ASSERT_EQ(ring.Push(50), 50);
  ring.Free(50);
  EXPECT_FALSE(ring.HasRoom(1));
  ring.Free(0);
  EXPECT_TRUE(ring.HasRoom(100));
}

TEST(ShmStagingRingTest, MoreThanTheRingNeverFits) { EXPECT_FALSE(ShmStagingRing(100).HasRoom(101)); }

// Against a map of bytes: no two runs share one, and whatever fits an empty ring is given in the end.
TEST(ShmStagingRingTest, RunsNeverOverlap) {
  std::mt19937 random(RandomSeed());
  struct Run {
    int64_t offset, bytes;
  };
  ShmStagingRing ring(1000);
  std::vector<bool> used(1000);
  std::vector<Run> runs;
  const auto mark = [&](const Run& run, bool value) {
    for (int64_t i = run.offset; i < run.offset + run.bytes; ++i) {
      ASSERT_NE(used[i], value);
      used[i] = value;
    }
  };
  for (int step = 0; step < 50000; ++step) {
    const int64_t bytes = 1 + random() % (random() % 10 == 0 ? 1000 : 200);
    if (const auto offset = ring.Push(bytes)) {
      ASSERT_LE(*offset + bytes, 1000);
      runs.push_back({*offset, bytes});
      mark(runs.back(), true);
    } else {
      ASSERT_FALSE(runs.empty());
      const size_t which = random() % runs.size();
      mark(runs[which], false);
      ring.Free(runs[which].offset);
      runs.erase(runs.begin() + which);
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::transport
