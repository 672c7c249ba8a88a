// SPDX-License-Identifier: Apache-2.0
// How much of a processor this process uses while the test does nothing.
//
//   EXPECT_LT(IdleCpuShare(), 0.01);
#pragma once

#include <time.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace swiftcache::fakes {

/// Of one processor's time, in the idlest of some half seconds: a busy machine makes the last of what went before late
/// and dear, whereas what polls or spins does so in each.
inline double IdleCpuShare() {
  constexpr absl::Duration kWindow = absl::Milliseconds(500);
  constexpr double kIdle = 0.001;  // so little needs no second look
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return absl::DurationFromTimespec(time);
  };
  double least = 1;
  for (int i = 0; i < 6 && least > kIdle; ++i) {
    const absl::Duration before = used();
    absl::SleepFor(kWindow);
    least = std::min(least, absl::FDivDuration(used() - before, kWindow));
  }
  return least;
}

}  // namespace swiftcache::fakes
