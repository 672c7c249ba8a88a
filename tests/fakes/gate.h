// SPDX-License-Identifier: Apache-2.0
// Where a fake hangs while the test wants it to.
//
//   Gate gate;
//   gate.Close();
//   EXPECT_TRUE(gate.WaitUntilSomebodyHangs());  // in gate.Pass()
//   gate.Open();
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace swiftcache {

/// Thread-safety: safe.
class Gate {
 public:
  void Close() { SetOpen(false); }
  void Open() { SetOpen(true); }
  /// False: nobody came to hang here.
  bool WaitUntilSomebodyHangs() const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&holds_), absl::Seconds(30));
  }
  void Pass() {
    absl::MutexLock lock(&mutex_);
    holds_ = !open_;
    mutex_.Await(absl::Condition(&open_));
    holds_ = false;
  }

 private:
  void SetOpen(bool open) {
    absl::MutexLock lock(&mutex_);
    open_ = open;
  }

  mutable absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true, holds_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache
