// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/stepped_wall_clock.h"

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

namespace {
std::atomic<int64_t> ahead_s = 0;  // of the kernel's own
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto failed = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (failed == 0 && clock == CLOCK_REALTIME) now->tv_sec += ahead_s;
  return failed;
}

// Abseil's waits reckon from this one, and the kernel by its own clock: as if that were set back just after.
extern "C" int gettimeofday(timeval* __restrict now, void* __restrict) noexcept {
  timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  now->tv_sec = real.tv_sec;
  now->tv_usec = real.tv_nsec / 1000;
  return 0;
}

namespace swiftcache {

SteppedWallClock::SteppedWallClock(int64_t seconds) { ahead_s = seconds; }
SteppedWallClock::~SteppedWallClock() { ahead_s = 0; }

}  // namespace swiftcache
