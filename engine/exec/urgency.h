// SPDX-License-Identifier: Apache-2.0
// Leases that a step under way should stop reading soon: written by the coordinator's thread, read between layers.
//
//   urgency.Set(lease, until);                           // the coordinator
//   if (urgency.Earliest(step_leases) < forecast) ...    // the step
//   urgency.Forget(lease);                               // the loop, once it has dealt with the lease
#pragma once

#include <atomic>
#include <map>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/kv/lease_id.h"

namespace swiftcache::engine::exec {

/// Thread-safety: safe; where nothing is urgent a question costs one relaxed load. Ownership: a value. Errors: none.
class Urgency {
 public:
  void Set(kv::LeaseId lease, absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto [it, entered] = until_.try_emplace(lease, until);
    if (!entered && until < it->second) it->second = until;
    any_.store(true, std::memory_order_relaxed);
  }
  void Forget(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    until_.erase(lease);
    any_.store(!until_.empty(), std::memory_order_relaxed);
  }
  /// Of these leases; infinite future: none is urgent.
  absl::Time Earliest(std::span<const kv::LeaseId> leases) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Time earliest = absl::InfiniteFuture();
    if (!any_.load(std::memory_order_relaxed)) return earliest;
    absl::MutexLock lock(&mutex_);
    for (const kv::LeaseId lease : leases) {
      const auto it = until_.find(lease);
      if (it != until_.end() && it->second < earliest) earliest = it->second;
    }
    return earliest;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, absl::Time> until_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
};

}  // namespace swiftcache::engine::exec
