// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/load_rate.h"

#include <gtest/gtest.h>

namespace swiftcache::engine::transport {
namespace {

constexpr int64_t kLoad = 4 << 20;

LoadRate After(int64_t loads) {
  LoadRate rate;
  for (int64_t i = 0; i < loads; ++i) rate.Note(kLoad, absl::Milliseconds(4));
  return rate;
}

TEST(LoadRateTest, IsThatOfTheFastestLoad) {
  LoadRate rate = After(LoadRate::kLeastLoads);
  EXPECT_DOUBLE_EQ(rate.bytes_per_second().value(), kLoad / 0.004);
  rate.Note(kLoad, absl::Milliseconds(2));
  rate.Note(kLoad, absl::Milliseconds(8));
  EXPECT_DOUBLE_EQ(rate.bytes_per_second().value(), kLoad / 0.002);
}

TEST(LoadRateTest, TheFirstFewLoadsSayNothing) {
  EXPECT_EQ(After(LoadRate::kLeastLoads - 1).bytes_per_second(), std::nullopt);
}

TEST(LoadRateTest, SmallLoadsAndThoseThatTookNoTimeDoNotCount) {
  LoadRate rate = After(LoadRate::kLeastLoads - 1);
  rate.Note(LoadRate::kLeastBytes - 1, absl::Milliseconds(1));
  rate.Note(kLoad, absl::ZeroDuration());
  EXPECT_EQ(rate.bytes_per_second(), std::nullopt);
  rate.Note(LoadRate::kLeastBytes, absl::Seconds(1));
  EXPECT_DOUBLE_EQ(rate.bytes_per_second().value(), kLoad / 0.004);
}

}  // namespace
}  // namespace swiftcache::engine::transport
