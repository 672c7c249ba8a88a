// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/extent_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace swiftcache::engine::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// The set has these places, in merged extents.
void ExpectHolds(const ExtentSet& set, const std::set<int32_t>& expected) {
  std::set<int32_t> listed;
  int32_t last_end = -1;
  for (auto [start, length] : set.extents()) {
    ASSERT_GT(start, last_end) << "adjacent extents were not merged";
    for (int32_t i = start; i < start + length; ++i) listed.insert(i);
    last_end = start + length;
  }
  ASSERT_EQ(listed, expected);
  ASSERT_EQ(set.size(), static_cast<int64_t>(expected.size()));
}

TEST(ExtentSetTest, LowAddressesGoFirst) {
  ExtentSet free(10);
  EXPECT_THAT(free.Take(3, std::nullopt), ElementsAre(0, 1, 2));
  free.Insert(1);
  EXPECT_THAT(free.Take(1, std::nullopt), ElementsAre(1));
}

TEST(ExtentSetTest, AGroupGoesToTheLowestRunThatHoldsItWhole) {
  ExtentSet free(10);
  (void)free.Take(6, std::nullopt);
  for (int32_t id : {0, 2, 3}) free.Insert(id);
  EXPECT_THAT(free.Take(2, std::nullopt), ElementsAre(2, 3));
}

TEST(ExtentSetTest, WithoutALongRunTheLowestPiecesAreTaken) {
  ExtentSet free(5);
  (void)free.Take(5, std::nullopt);
  for (int32_t id : {0, 2, 4}) free.Insert(id);
  EXPECT_THAT(free.Take(3, std::nullopt), ElementsAre(0, 2, 4));
  EXPECT_EQ(free.size(), 0);
}

TEST(ExtentSetTest, AGrowingTableContinuesWhereItEnded) {
  ExtentSet free(10);
  (void)free.Take(5, std::nullopt);
  free.Insert(0);
  EXPECT_THAT(free.Take(2, 4), ElementsAre(5, 6));
  EXPECT_THAT(free.Take(1, 3), ElementsAre(0));
}

TEST(ExtentSetTest, NeighboursMerge) {
  ExtentSet free(4);
  (void)free.Take(4, std::nullopt);
  for (int32_t id : {0, 2, 3, 1}) free.Insert(id);
  EXPECT_THAT(free.extents(), ElementsAre(Pair(0, 4)));
}

TEST(ExtentSetDeathTest, APlaceIsInsertedOnce) {
  ExtentSet free(4);
  EXPECT_DEATH(free.Insert(2), "in the set already");
}

TEST(ExtentSetTest, RandomUseAgreesWithASet) {
  std::mt19937 rng(1);
  ExtentSet free(64);
  std::set<int32_t> expected;
  for (int32_t i = 0; i < 64; ++i) expected.insert(i);
  std::vector<int32_t> taken;
  for (int round = 0; round < 20000; ++round) {
    if (rng() % 2 == 0 && !expected.empty()) {
      std::optional<int32_t> after;
      if (rng() % 2) after = static_cast<int32_t>(rng() % 64);
      const auto ids = free.Take(rng() % std::min<size_t>(expected.size(), 6) + 1, after);
      for (int32_t id : ids) ASSERT_EQ(expected.erase(id), 1u);
      taken.insert(taken.end(), ids.begin(), ids.end());
    } else if (!taken.empty()) {
      std::swap(taken[rng() % taken.size()], taken.back());
      free.Insert(taken.back());
      expected.insert(taken.back());
      taken.pop_back();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(free, expected));
  }
}

// What Take promises, by a look at every run.
std::vector<int32_t> NaivelyTaken(std::set<int32_t> places, size_t count, std::optional<int32_t> after) {
  std::vector<int32_t> taken;
  const auto take = [&](int32_t first) {
    for (; taken.size() < count && places.erase(first) > 0; ++first) taken.push_back(first);
  };
  if (after && !places.contains(*after)) take(*after + 1);
  while (taken.size() < count) {
    int32_t lowest = *places.begin(), run = lowest, length = 0, last = lowest - 1;
    for (const int32_t place : places) {
      if (place != last + 1) run = place, length = 0;
      last = place;
      if (++length != static_cast<int32_t>(count - taken.size())) continue;
      lowest = run;
      break;
    }
    take(lowest);
  }
  return taken;
}

TEST(ExtentSetTest, RandomTakesGoWhereALookAtEveryRunSaysTheyGo) {
  std::mt19937 rng(7);
  ExtentSet free;
  std::set<int32_t> expected;
  for (int round = 0; round < 20000; ++round) {
    const int32_t place = static_cast<int32_t>(rng() % 200);
    if (rng() % 4 == 0 && !expected.empty()) {
      const size_t count = rng() % std::min<size_t>(expected.size(), 9) + 1;
      const std::optional<int32_t> after = rng() % 2 ? std::optional(place) : std::nullopt;
      const std::vector<int32_t> taken = free.Take(static_cast<int64_t>(count), after);
      ASSERT_EQ(taken, NaivelyTaken(expected, count, after));
      for (const int32_t gone : taken) expected.erase(gone);
    } else if (expected.insert(place).second) {
      free.Insert(place);
    }
  }
}

TEST(ExtentSetTest, ARunLeavesTheMiddleOfAnother) {
  ExtentSet set(10);
  set.Remove(3, 4);
  EXPECT_THAT(set.extents(), ElementsAre(Pair(0, 3), Pair(7, 3)));
  EXPECT_TRUE(set.Covers(7, 3));
  EXPECT_FALSE(set.Covers(2, 2));
  EXPECT_FALSE(set.Covers(8, 3));
  EXPECT_EQ(set.CountWithin(0, 8, 10), 4);
  EXPECT_EQ(set.CountWithin(1, 8, 3), 3) << "it stops where that is enough";
  set.Insert(3, 4);
  EXPECT_THAT(set.extents(), ElementsAre(Pair(0, 10)));
}

TEST(ExtentSetTest, UniteTakesInWhateverIsThere) {
  ExtentSet set;
  for (int32_t first : {0, 4, 8, 14}) set.Insert(first, 2);
  set.Unite(5, 6);
  EXPECT_THAT(set.extents(), ElementsAre(Pair(0, 2), Pair(4, 7), Pair(14, 2)));
  EXPECT_EQ(set.size(), 11);
  set.Unite(2, 2);
  EXPECT_THAT(set.extents(), ElementsAre(Pair(0, 11), Pair(14, 2)));
}

TEST(ExtentSetDeathTest, ARunThatIsNotWhollyThereCannotBeRemoved) {
  ExtentSet set(4);
  EXPECT_DEATH(set.Remove(2, 3), "not all in the set");
  EXPECT_DEATH(set.Insert(3, 3), "in the set already");
}

TEST(ExtentSetTest, RandomRunsAgreeWithASet) {
  std::mt19937 rng(5);
  ExtentSet set;
  std::set<int32_t> expected;
  for (int round = 0; round < 20000; ++round) {
    const int32_t first = static_cast<int32_t>(rng() % 60), count = static_cast<int32_t>(rng() % 8) + 1;
    int32_t there = 0;
    for (int32_t i = first; i < first + count; ++i) there += expected.contains(i);
    ASSERT_EQ(set.Covers(first, count), there == count);
    ASSERT_EQ(set.CountWithin(0, first, 60), std::distance(expected.begin(), expected.lower_bound(first)));
    ASSERT_EQ(set.CountWithin(first, first + count, count), there);
    if (there == count && rng() % 2) {
      set.Remove(first, count);
      for (int32_t i = first; i < first + count; ++i) expected.erase(i);
    } else if (there == 0 || rng() % 8 == 0) {
      if (there == 0) {
        set.Insert(first, count);
      } else {
        set.Unite(first, count);
      }
      for (int32_t i = first; i < first + count; ++i) expected.insert(i);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(set, expected));
  }
}

}  // namespace
}  // namespace swiftcache::engine::kv
