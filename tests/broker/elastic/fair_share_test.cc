// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/fair_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/fakes/random_seed.h"

namespace swiftcache::broker::elastic {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FairShareTest, EverybodyGetsWhatItWantsWhereThereIsEnough) {
  EXPECT_THAT(FairShares(100, {{1, 30}, {5, 60}}), ElementsAre(30, 60));
  EXPECT_THAT(FairShares(100, {}), IsEmpty());
}

TEST(FairShareTest, ScarcityIsDividedByWeightWhoeverComesFirst) {
  EXPECT_THAT(FairShares(90, {{1, 1000}, {2, 1000}}), ElementsAre(30, 60));
  EXPECT_THAT(FairShares(90, {{2, 1000}, {1, 1000}}), ElementsAre(60, 30));
}

TEST(FairShareTest, WhatOneDoesNotWantGoesToTheOthers) {
  EXPECT_THAT(FairShares(100, {{1, 10}, {1, 90}, {2, 500}}), ElementsAre(10, 30, 60));
}

TEST(FairShareTest, HugeNumbersDoNotWrap) {
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(FairShares(huge, {{int64_t{1} << 40, INT64_MAX}, {int64_t{1} << 40, INT64_MAX}}),
              ElementsAre(huge / 2, huge / 2));
}

TEST(FairShareTest, SharesAreMaxMinFairForRandomClaims) {
  std::mt19937 random(RandomSeed());
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  for (int i = 0; i < 2000; ++i) {
    std::vector<ShareClaim> claims(draw(1, 6));
    for (ShareClaim& claim : claims) claim = {.weight = draw(1, 50), .wanted_bytes = draw(0, 10'000)};
    const int64_t pool = draw(0, 30'000);
    const std::vector<int64_t> shares = FairShares(pool, claims);
    int64_t wanted = 0, given = 0;
    for (size_t a = 0; a < claims.size(); ++a) {
      ASSERT_LE(shares[a], claims[a].wanted_bytes);
      wanted += claims[a].wanted_bytes;
      given += shares[a];
      if (shares[a] == claims[a].wanted_bytes) continue;
      for (size_t b = 0; b < claims.size(); ++b) {  // nobody has more for its weight than one who lacks some
        EXPECT_LE(static_cast<double>(shares[b] - 6) / claims[b].weight,
                  static_cast<double>(shares[a] + 6) / claims[a].weight);
      }
    }
    EXPECT_LE(given, pool);
    EXPECT_GE(given, std::min(pool, wanted) - static_cast<int64_t>(claims.size()));
  }
}

}  // namespace
}  // namespace swiftcache::broker::elastic
