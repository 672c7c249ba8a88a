// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace swiftcache::engine::sample {
namespace {

using ::testing::ElementsAre;

// The known answers published with Random123 for philox4x32-10.
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(UniformAtTest, EveryPartOfTheIdMatters) {
  std::set<double> values;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (int32_t continuation : {0, 1}) {
      for (int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 33}) {
        values.insert(UniformAt({seed, continuation, position}));
      }
    }
  }
  EXPECT_EQ(values.size(), 18u);
}

TEST(UniformAtTest, StaysInTheHalfOpenUnitIntervalAndAveragesOneHalf) {
  double sum = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = UniformAt({.seed = 7, .continuation = 0, .position = i});
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
}

}  // namespace
}  // namespace swiftcache::engine::sample
