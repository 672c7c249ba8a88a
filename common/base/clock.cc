// SPDX-License-Identifier: Apache-2.0
#include "common/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace swiftcache {

absl::Time RealClock::Now() const {
  using std::chrono::steady_clock;
  static const struct {
    absl::Time wall;
    steady_clock::time_point mono;
  } start = {absl::Now(), steady_clock::now()};
  return start.wall + absl::FromChrono(steady_clock::now() - start.mono);
}

}  // namespace swiftcache
