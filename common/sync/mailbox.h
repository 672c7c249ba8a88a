// SPDX-License-Identifier: Apache-2.0
// A queue of messages to a loop that owns its state: any thread puts messages in, one loop takes all of them at once.
//
//   if (!mailbox.TryPush(std::move(message))) return absl::ResourceExhaustedError("mailbox full");
//   for (Message& m : mailbox.TakeAll(timeout)) Handle(m);
#pragma once

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/sync/timed_mutex.h"

namespace swiftcache {

/// Messages in order of arrival. TryPush refuses messages beyond the capacity; none is lost or overwritten.
/// Thread-safety: safe. Ownership: owns its messages. Errors: TryPush returns false when full or closed.
template <typename T>
class Mailbox {
 public:
  /// Without a capacity the senders have to bound what they send.
  explicit Mailbox(size_t capacity = std::numeric_limits<size_t>::max()) : capacity_(capacity) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  bool TryPush(T message) ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    if (closed_ || messages_.size() >= capacity_) return false;
    messages_.push_back(std::move(message));
    return true;
  }

  /// Whatever the capacity: for what must not be refused (cancel, stop), or is bounded elsewhere. Dropped when closed.
  void Push(T message) ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    if (!closed_) messages_.push_back(std::move(message));
  }

  /// Takes everything, in order of arrival; waits until there is something, it is closed or `timeout` passed.
  std::vector<T> TakeAll(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    if (timeout > absl::ZeroDuration()) {
      mutex_.AwaitWithTimeout(absl::Condition(this, &Mailbox::ReadyLocked), timeout);
    }
    return std::exchange(messages_, {});
  }

  /// Refuses further messages and wakes the taker. What is inside can still be taken.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    closed_ = true;
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexReadLock lock(&mutex_);
    return closed_;
  }

 private:
  bool ReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !messages_.empty(); }

  const size_t capacity_;
  mutable TimedMutex mutex_;
  std::vector<T> messages_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache
