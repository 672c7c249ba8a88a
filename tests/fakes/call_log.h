// SPDX-License-Identifier: Apache-2.0
// What a fake was asked, in words, in order.
//
//   CallLog log;  log.Add("Fence 7");              // the fake
//   ASSERT_TRUE(log.WaitFor("Fence 7"));           // the test, whatever thread it was
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace swiftcache {

/// Thread-safety: safe.
class CallLog {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  void Add(std::string call) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }
  /// False: it was not called that often in good time.
  bool WaitFor(const std::string& call, int64_t times = 1) const {
    const auto called = [&] {
      mutex_.AssertHeld();
      return std::count(calls_.begin(), calls_.end(), call) >= times;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&called), kPatience);
  }
  int64_t Count(const std::string& call) const {
    absl::MutexLock lock(&mutex_);
    return std::count(calls_.begin(), calls_.end(), call);
  }
  /// From the first-th on.
  std::vector<std::string> calls(size_t first = 0) const {
    absl::MutexLock lock(&mutex_);
    return {calls_.begin() + static_cast<int64_t>(std::min(first, calls_.size())), calls_.end()};
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache
