// SPDX-License-Identifier: Apache-2.0
#include "common/base/wall_time.h"

#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace swiftcache {

absl::Time ToWallTime(absl::Time time) { return Translate(time, RealClock().Now(), WallTimeNow()); }

absl::Time FromWallTime(absl::Time time) { return Translate(time, WallTimeNow(), RealClock().Now()); }

absl::Time WallTimeNow() { return absl::Now(); }

absl::Time Translate(absl::Time time, absl::Time here, absl::Time there) { return there + (time - here); }

}  // namespace swiftcache
