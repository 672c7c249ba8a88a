// SPDX-License-Identifier: Apache-2.0
// A clock that is handed in, so that tests and the simulator control the time.
//
//   const RealClock clock;
//   const absl::Time deadline = clock.Now() + absl::Seconds(1);
#pragma once

#include "absl/time/time.h"

namespace swiftcache {

/// The time now. Monotonic: never goes back, whatever happens to the wall clock.
/// Thread-safety: safe. Ownership: borrowed by all users. Errors: none.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

/// The process's clock: the wall time at the first call, advanced by the monotonic clock.
class RealClock final : public Clock {
 public:
  absl::Time Now() const override;
};

}  // namespace swiftcache
