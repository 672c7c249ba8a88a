// SPDX-License-Identifier: Apache-2.0
// Leases that a step under way should not outlast: written by the coordinator's thread, read between layers.
//
//   urgency.Note(message, clock.Now());                   // whoever pushes it to the loop, before that
//   if (urgency.Earliest(leases_it_reads) < forecast) ... // the step
//   urgency.NotYet(lease);                                // the loop, of a drain that may wait
//   urgency.Forget(lease);                                // the loop, once it has dealt with the lease
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/coordinator/loop_message.h"
#include "engine/kv/lease_id.h"

namespace swiftcache::engine::exec {

/// Thread-safety: safe; where nothing is urgent a question costs one relaxed load. Ownership: a value. Errors: none.
class Urgency {
 public:
  /// A step may take this part of the time until what it reads, or is cut for, is wanted back; a longer one is cut short.
  static constexpr int kStepDivisor = 4;
  /// A donor that died is owed an end of the mapping within a second.
  static constexpr absl::Duration kUnmapWithin = absl::Milliseconds(500);

  /// Of a message on its way to the loop. A Drain concerns the steps that read the lease, and those that are cut
  /// for what lies there (Forward::Due). A Lose concerns every step. Others concern none.
  void Note(const coordinator::LoopMessage& message, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (const auto* drain = std::get_if<coordinator::DrainMessage>(&message)) {
      absl::MutexLock lock(&mutex_);
      Due& due = due_[drain->id];
      due.wanted_back = std::min(due.wanted_back, now + (drain->until - now) / kStepDivisor);
      ++due.drains;
      any_.store(true, std::memory_order_relaxed);
    } else if (const auto* lose = std::get_if<coordinator::LoseMessage>(&message)) {
      absl::MutexLock lock(&mutex_);
      Due& due = due_[lose->id];
      due.lost = std::min(due.lost, now + kUnmapWithin);
      any_.store(true, std::memory_order_relaxed);
    }
  }
  void Forget(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    due_.erase(lease);
    any_.store(!due_.empty(), std::memory_order_relaxed);
  }
  /// Of a drain that was noted nobody is in a hurry yet: steps may read the lease. Unless another drain of it, which
  /// may be in a hurry, is still on its way to the loop, or its donor is gone.
  void NotYet(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto it = due_.find(lease);
    if (it == due_.end() || --it->second.drains > 0) return;
    it->second.wanted_back = absl::InfiniteFuture();
    if (it->second.lost == absl::InfiniteFuture()) due_.erase(it);
    any_.store(!due_.empty(), std::memory_order_relaxed);
  }
  bool empty() const { return !any_.load(std::memory_order_relaxed); }
  /// Of a step that reads these leases; infinite future: nothing is urgent.
  absl::Time Earliest(std::span<const kv::LeaseId> read) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Time earliest = absl::InfiniteFuture();
    if (!any_.load(std::memory_order_relaxed)) return earliest;
    absl::MutexLock lock(&mutex_);
    for (const auto& [lease, due] : due_) earliest = std::min(earliest, due.lost);
    for (const kv::LeaseId lease : read) {
      const auto it = due_.find(lease);
      if (it != due_.end()) earliest = std::min(earliest, it->second.wanted_back);
    }
    return earliest;
  }
  /// Whether one of these is wanted back, or lost.
  bool Concerns(std::span<const kv::LeaseId> read) const ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!any_.load(std::memory_order_relaxed)) return false;
    absl::MutexLock lock(&mutex_);
    for (const kv::LeaseId lease : read) {
      if (due_.contains(lease)) return true;
    }
    return false;
  }

 private:
  struct Due {
    absl::Time wanted_back = absl::InfiniteFuture();
    absl::Time lost = absl::InfiniteFuture();
    int64_t drains = 0;  // noted, less those that may wait
  };

  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, Due> due_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
};

}  // namespace swiftcache::engine::exec
