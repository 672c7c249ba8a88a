// SPDX-License-Identifier: Apache-2.0
// Moments of the process's clock for libraries that count by the wall, which may have been set since the process
// started, or gone on while the machine slept.
//
//   server->Shutdown(absl::ToChronoTime(ToWallTime(deadline)));
#pragma once

#include "absl/time/time.h"

namespace swiftcache {

/// A moment of RealClock by the wall clock as it is set now, and back: as far away as by the other. Infinite times stay
/// as they are. Thread-safety: safe. Errors: none.
absl::Time ToWallTime(absl::Time time);
absl::Time FromWallTime(absl::Time time);

/// By a clock that shows `there` what is `time` by one that shows `here`.
absl::Time Translate(absl::Time time, absl::Time here, absl::Time there);

}  // namespace swiftcache
