// SPDX-License-Identifier: Apache-2.0
#include "common/base/clock.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace swiftcache {
namespace {

TEST(RealClockTest, StartsAtTheWallTimeAndNeverGoesBack) {
  RealClock clock;
  absl::Time last = clock.Now();
  EXPECT_LT(absl::AbsDuration(last - absl::Now()), absl::Seconds(5));
  for (int i = 0; i < 1000; ++i) {
    absl::Time now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace swiftcache
