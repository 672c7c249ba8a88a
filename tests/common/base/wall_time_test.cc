// SPDX-License-Identifier: Apache-2.0
#include "common/base/wall_time.h"

#include <gtest/gtest.h>

namespace swiftcache {
namespace {

TEST(WallTimeTest, AMomentIsAsFarAwayByEveryClock) {
  const absl::Time here = absl::FromUnixSeconds(10000), there = here - absl::Hours(1);
  EXPECT_EQ(Translate(here + absl::Seconds(30), here, there), there + absl::Seconds(30));
  EXPECT_EQ(Translate(absl::InfiniteFuture(), here, there), absl::InfiniteFuture());
  EXPECT_EQ(Translate(absl::InfinitePast(), here, there), absl::InfinitePast());
}

}  // namespace
}  // namespace swiftcache
