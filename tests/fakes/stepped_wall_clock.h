// SPDX-License-Identifier: Apache-2.0
// The wall clock set ahead, and set back just after a wait began: what Abseil waits until, by that clock, comes so much
// later.
//
//   const SteppedWallClock clock(/*seconds=*/20);
//   ... EXPECT_LT(took, absl::Seconds(15));
#pragma once

#include <cstdint>

namespace swiftcache {

/// While it lives gettimeofday and clock_gettime show this process a wall clock that is ahead of the kernel's, so that
/// waits of absl::Mutex are so much longer than they say. Thread-safety: safe, one at a time.
class SteppedWallClock {
 public:
  explicit SteppedWallClock(int64_t seconds);
  SteppedWallClock(const SteppedWallClock&) = delete;
  SteppedWallClock& operator=(const SteppedWallClock&) = delete;
  ~SteppedWallClock();
};

}  // namespace swiftcache
