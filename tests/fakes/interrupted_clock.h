// SPDX-License-Identifier: Apache-2.0
// The process's clock, at which a test comes in the midst of a call.
//
//   InterruptedClock::Next([&] { ... });  // by this thread, where it next looks at the clock
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace swiftcache {

/// Thread-safety: safe.
class InterruptedClock final : public Clock {
 public:
  static void Next(std::function<void()> act) { next_ = std::move(act); }
  absl::Time Now() const override {
    if (next_) std::exchange(next_, nullptr)();
    return real_.Now();
  }

 private:
  static inline thread_local std::function<void()> next_;
  RealClock real_;
};

}  // namespace swiftcache
