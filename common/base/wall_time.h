// SPDX-License-Identifier: Apache-2.0
// The wall clock, which may have been set since the process started, or gone on while the machine slept: for what people
// read, and for libraries that count by it.
//
//   server->Shutdown(absl::ToChronoTime(ToWallTime(deadline)));
#pragma once

#include "absl/time/time.h"

namespace swiftcache {

/// A moment of RealClock by the wall clock as it is set now, and back: as far away as by the other. Infinite times stay
/// as they are. Thread-safety: safe. Errors: none.
absl::Time ToWallTime(absl::Time time);
absl::Time FromWallTime(absl::Time time);

/// What the wall clock shows. May go back: nothing is measured by it.
absl::Time WallTimeNow();

/// By a clock that shows `there` what is `time` by one that shows `here`.
absl::Time Translate(absl::Time time, absl::Time here, absl::Time there);

}  // namespace swiftcache
