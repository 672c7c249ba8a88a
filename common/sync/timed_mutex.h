// SPDX-License-Identifier: Apache-2.0
// A mutex for those who wait for a time: by the monotonic clock, whatever becomes of the wall clock meanwhile.
//
//   TimedMutexLock lock(&mutex_);
//   mutex_.AwaitWithTimeout(absl::Condition(&stopped_), absl::Seconds(1));
//
// absl::Mutex of Debian 12 waits until a time of the wall clock. Where that is set back by two hours, who waits for a second
// waits for two hours: no heartbeat is sent, and no deadline kept.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace swiftcache {

/// As absl::Mutex, but that each unlocking wakes all who wait here, who look at their conditions again, unless it says that
/// nothing was changed. Thread-safety: safe. Errors: none.
class ABSL_LOCKABLE TimedMutex {
 public:
  TimedMutex() = default;
  TimedMutex(const TimedMutex&) = delete;
  TimedMutex& operator=(const TimedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  // Wakes them under the lock: whoever goes on may end this mutex.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    WakeAll();
    mutex_.unlock();
  }
  /// Of who has only read.
  void UnlockUnchanged() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

  void Await(const absl::Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    AwaitWithTimeout(condition, absl::InfiniteDuration());
  }
  /// Unlocks it until the condition holds or the time has passed. True: it holds.
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    WakeAll();  // by what was changed before
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    ++num_waiting_;
    const auto holds = [&condition] { return condition.Eval(); };
    if (timeout < absl::Hours(24 * 365)) {
      changed_.wait_until(lock, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout), holds);
    } else {
      changed_.wait(lock, holds);
    }
    --num_waiting_;
    lock.release();
    return condition.Eval();
  }

 private:
  void WakeAll() {
    if (num_waiting_ > 0) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_waiting_ = 0;  // guarded by mutex_
};

/// Holds the mutex while it lives. `may_change`: what conditions look at.
template <bool may_change>
class ABSL_SCOPED_LOCKABLE TimedMutexHold {
 public:
  explicit TimedMutexHold(TimedMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(*mutex) { mutex_.Lock(); }
  ~TimedMutexHold() ABSL_UNLOCK_FUNCTION() {
    if constexpr (may_change) {
      mutex_.Unlock();
    } else {
      mutex_.UnlockUnchanged();
    }
  }
  TimedMutexHold(const TimedMutexHold&) = delete;
  TimedMutexHold& operator=(const TimedMutexHold&) = delete;

 private:
  TimedMutex& mutex_;
};
using TimedMutexLock = TimedMutexHold<true>;
using TimedMutexReadLock = TimedMutexHold<false>;

/// Something that happens once, such as that a thread is to stop. Thread-safety: safe.
class TimedNotification {
 public:
  void Notify() ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    notified_ = true;
  }
  bool HasBeenNotified() const ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexReadLock lock(&mutex_);
    return notified_;
  }
  /// False: the time has passed before.
  bool WaitWithTimeout(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&notified_), timeout);
  }

 private:
  mutable TimedMutex mutex_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache
