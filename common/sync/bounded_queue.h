// SPDX-License-Identifier: Apache-2.0
// The way into a loop that owns its state: producers push, one loop takes everything at once.
//
//   if (!queue.TryPush(std::move(message))) return absl::ResourceExhaustedError("queue full");
//   for (Message& m : queue.TakeAll(deadline)) Handle(m);
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace swiftcache {

/// A queue of at most `capacity` elements. When full, TryPush refuses and nothing is lost or overwritten.
/// Thread-safety: safe. Ownership: owns its elements. Errors: TryPush returns false when full or closed.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  bool TryPush(T value) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    return true;
  }

  /// Pushes although the queue is full: for messages that must not be refused (cancel, stop). Dropped when closed.
  void PushUrgent(T value) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!closed_) items_.push_back(std::move(value));
  }

  /// Takes everything, in order of arrival; waits until there is something, the queue is closed or `timeout` passed.
  std::vector<T> TakeAll(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (timeout > absl::ZeroDuration()) {
      mutex_.AwaitWithTimeout(absl::Condition(this, &BoundedQueue::ReadyLocked), timeout);
    }
    return std::exchange(items_, {});
  }

  /// Refuses further elements and wakes the taker. What is inside can still be taken.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  bool ReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !items_.empty(); }

  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::vector<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache
