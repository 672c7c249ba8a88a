// SPDX-License-Identifier: Apache-2.0
// Time as a thing that is handed in, so that tests and the simulator own it.
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
