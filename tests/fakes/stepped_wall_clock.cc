// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/stepped_wall_clock.h"

#include <sys/time.h>

#include <atomic>
#include <ctime>

namespace {
std::atomic<int64_t> ahead_s = 0;  // of where the wall clock will be set
}  // namespace

// Abseil's waits reckon from this one, and the kernel by its own clock: as if that were set back just after.
extern "C" int gettimeofday(timeval* __restrict now, void* __restrict) noexcept {
  timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  now->tv_sec = real.tv_sec + ahead_s;
  now->tv_usec = real.tv_nsec / 1000;
  return 0;
}

namespace swiftcache {

SteppedWallClock::SteppedWallClock(int64_t seconds) { ahead_s = seconds; }
SteppedWallClock::~SteppedWallClock() { ahead_s = 0; }

}  // namespace swiftcache
