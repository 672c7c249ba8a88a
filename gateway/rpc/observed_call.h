// SPDX-License-Identifier: Apache-2.0
// Keeps an observer's promises where events come on one thread and the end on any.
//
//   call.OnEvent(event);                    // the thread of the events
//   if (call.End(status)) call.TellEnd();   // it may also be that thread
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gateway/fleet/engine_client.h"

namespace swiftcache::gateway::rpc {

/// The observer hears one call at a time, nothing behind the end, and the end exactly once: by whoever ends the call,
/// or, where that happens during an event, by the thread of the events when the observer has returned.
/// Thread-safety: End from any thread; OnEvent one at a time. No lock is held while the observer is called: `in_event_`
/// belongs to the thread of the events, and `end_`, which is set once, lets nobody but who TellEnd is left to come to
/// the observer. Ownership: shares the observer until its end. Errors: none.
class ObservedCall {
 public:
  explicit ObservedCall(std::shared_ptr<fleet::EngineObserver> observer) : observer_(std::move(observer)) {}

  /// Nothing, if the call has ended.
  void OnEvent(fleet::EngineEvent event) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!BeginEvent()) return;
    observer_->OnEvent(std::move(event));
    if (FinishEvent()) TellEnd();
  }
  /// The first status counts. True: the caller has to call TellEnd, soon, and not under a lock.
  [[nodiscard]] bool End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return false;
    end_ = std::move(status);
    return !in_event_;
  }
  void TellEnd() { std::exchange(observer_, nullptr)->OnDone(Status()); }

 private:
  bool BeginEvent() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    in_event_ = !end_.has_value();
    return in_event_;
  }
  /// Whether the call has ended meanwhile.
  bool FinishEvent() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    in_event_ = false;
    return end_.has_value();
  }
  absl::Status Status() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return *end_;
  }

  std::shared_ptr<fleet::EngineObserver> observer_;
  mutable absl::Mutex mutex_;
  bool in_event_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::gateway::rpc
