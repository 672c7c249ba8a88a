// SPDX-License-Identifier: Apache-2.0
#include "common/base/wall_time.h"

#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace swiftcache {

absl::Time ToWallTime(absl::Time time) { return Translate(time, RealClock().Now(), absl::Now()); }

absl::Time FromWallTime(absl::Time time) { return Translate(time, absl::Now(), RealClock().Now()); }

absl::Time Translate(absl::Time time, absl::Time here, absl::Time there) { return there + (time - here); }

}  // namespace swiftcache
