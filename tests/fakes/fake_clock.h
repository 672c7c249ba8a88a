// SPDX-License-Identifier: Apache-2.0
// Time that stands still until the test moves it.
//
//   FakeClock clock;
//   clock.Advance(absl::Seconds(2));
#pragma once

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace swiftcache {

/// Thread-safety: safe.
class FakeClock final : public Clock {
 public:
  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    now_ += by;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(24 * 365);
};

}  // namespace swiftcache
