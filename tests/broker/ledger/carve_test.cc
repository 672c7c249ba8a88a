// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/carve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/fakes/random_seed.h"

namespace swiftcache::broker::ledger {
namespace {

TEST(CarveTest, TakesTheTailOfAnEmptyRegion) {
  EXPECT_EQ(CarveFromTail({40, 60}, {}, {.unit_blocks = 8, .step_blocks = 1, .max_units = 2}), (Extent{84, 16}));
}

TEST(CarveTest, BeginsAndEndsOnSteps) {
  EXPECT_EQ(CarveFromTail({0, 103}, {}, {.unit_blocks = 8, .step_blocks = 8, .max_units = 1}), (Extent{88, 8}));
}

TEST(CarveTest, TakesTheGapNearestToTheEndEvenIfItHoldsLess) {
  const std::vector<Extent> taken = {{60, 10}, {90, 10}};
  EXPECT_EQ(CarveFromTail({0, 100}, taken, {.unit_blocks = 10, .max_units = 5}), (Extent{70, 20}));
  EXPECT_EQ(CarveFromTail({0, 100}, taken, {.unit_blocks = 25, .max_units = 5}), (Extent{10, 50}));
}

TEST(CarveTest, NeverLeavesTheRegion) {
  EXPECT_EQ(CarveFromTail({95, 5}, {}, {.unit_blocks = 6}), std::nullopt);
  EXPECT_EQ(CarveFromTail({95, 5}, {{0, 97}}, {.unit_blocks = 3}), (Extent{97, 3}));
  EXPECT_EQ(CarveFromTail({100, 0}, {}, {.unit_blocks = 1}), std::nullopt);
  EXPECT_EQ(CarveFromTail({0, 100}, {{0, 100}}, {.unit_blocks = 1}), std::nullopt);
}

// The oracle: tries every place from the end.
TEST(CarveTest, WhatIsTakenTwiceIsTaken) {
  EXPECT_EQ(CarveFromTail({0, 20}, {{15, 5}, {8, 2}, {7, 6}}, {.max_units = 9}), (Extent{13, 2}));
}

TEST(CarveTest, FindsRoomWhereverAnExhaustiveSearchDoes) {
  std::mt19937 random(RandomSeed());
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  for (int i = 0; i < 3000; ++i) {
    std::vector<Extent> taken;
    for (int64_t at = draw(0, 20); at < 100;) {
      const int64_t length = std::min<int64_t>(draw(1, 15), 100 - at);
      taken.push_back({at, length});
      at += length + draw(0, 25);
    }
    std::shuffle(taken.begin(), taken.end(), random);
    const int64_t first = draw(0, 100), step = draw(1, 5);
    const CarveSpec spec{.unit_blocks = step * draw(1, 4), .step_blocks = step, .max_units = draw(1, 3)};
    const auto free = [&](const Extent& extent) {
      return extent.first_block >= first && extent.end() <= 100 &&
             std::none_of(taken.begin(), taken.end(), [&](const Extent& t) { return t.Overlaps(extent); });
    };
    int64_t highest_end = -1;
    for (int64_t at = 100 / step * step; at >= 0; at -= step) {
      if (free({at, spec.unit_blocks})) highest_end = std::max(highest_end, at + spec.unit_blocks);
    }
    const auto found = CarveFromTail({first, 100 - first}, taken, spec);
    ASSERT_EQ(found.has_value() ? found->end() : -1, highest_end);
    if (!found.has_value()) continue;
    EXPECT_TRUE(free(*found));
    EXPECT_EQ(found->first_block % step, 0);
    EXPECT_EQ(found->num_blocks % spec.unit_blocks, 0);
    EXPECT_LE(found->num_blocks, spec.unit_blocks * spec.max_units);
  }
}

}  // namespace
}  // namespace swiftcache::broker::ledger
