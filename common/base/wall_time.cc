// SPDX-License-Identifier: Apache-2.0
#include "common/base/wall_time.h"

#include <chrono>

#include "common/base/clock.h"

namespace swiftcache {

absl::Time ToWallTime(absl::Time time) { return Translate(time, RealClock().Now(), WallTimeNow()); }

absl::Time FromWallTime(absl::Time time) { return Translate(time, WallTimeNow(), RealClock().Now()); }

// absl::Now() goes on for 2 s as the clock was before it was set.
absl::Time WallTimeNow() { return absl::FromChrono(std::chrono::system_clock::now()); }

absl::Time Translate(absl::Time time, absl::Time here, absl::Time there) { return there + (time - here); }

}  // namespace swiftcache
