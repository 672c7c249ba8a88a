// SPDX-License-Identifier: Apache-2.0
// What the step under way does not read of leases, so that the coordinator gives it back at once.
//
//   if (!reads.Begin(unread, held)) ...take messages...         // the loop
//   ...compute...
//   for (kv::LeaseId lease : reads.End()) ...it is gone...
//
//   reads.Offer(lease); ...tell the loop to use it...           // the coordinator; UseMessage; the loop says Accept
//   if (reads.TakeOrAnnounce(lease, at_once)) ...release it...
//   else ...tell the loop to drain it...                        // DrainMessage; the loop says Handled
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/kv/lease_id.h"

namespace swiftcache::engine::coordinator {

/// A lease that is taken is given back to its donor at once: from then on its memory is another's. Why nobody reads it:
///
///   1. The loop's thread alone reads leases, or has them read: by a step, which begins to after Begin and has ended all
///      of it before End, also where it is cut short or fails; and by copies, which it starts before Begin or after End,
///      and whose end it hears of there too. `unread` and `held` are leases that the loop knows and that neither this step
///      nor a copy under way reads. Messages, which change what is read, are handled before Begin or after End.
///   2. A lease is taken under the lock, between Begin and End, and only if it is one of these. So nobody reads it at
///      that moment, and nobody begins to before End. Or it is one that was offered and that the loop has not accepted:
///      then nobody has blocks there, and Accept tells the loop that nobody ever will.
///   3. End tells the loop what else was taken, and the loop forgets these leases before it does anything else: whoever has
///      blocks there is reset, nobody attaches blocks there, and no Begin names them again. Nothing is taken after End and
///      before the next Begin. What was announced before it was taken reaches the loop as a drain of a lease that it
///      does not know any more, or knows as lost.
///   4. The coordinator takes only what its borrower's half drains; by that it is losing, whose end is Dropped. So what
///      was taken is released once, and closed when the loop has forgotten it.
///
/// Copies into a lease that is taken may be under way; their source is no lease's memory that was given back, and
/// they stay at home (kv::Tiers::RegionDraining). All of this saves time, not results: a reader that were missed here
/// would still see the generation changed.
///
/// An announced drain waits for at most one step, since Begin refuses until the loop has handled it (a second drain of
/// the same lease, too). It waits only if the step reads the lease, if the lease is in `held` (the step is then cut
/// short where that helps: exec::Urgency), or if a copy out of the lease began before it.
///
/// `held`: leases where sequences that the step does not compute have blocks, or which are worth cutting the step
/// (exec::Borrowing). They are left to the loop, which may save what lies there; Take takes them too, for when that comes
/// too late. `unread`: the others.
///
/// Thread-safety: safe; one loop. Ownership: a value. Errors: none.
class StepReads {
 public:
  // The loop's thread.
  /// False: a drain was announced and not handled; no step is under way.
  bool Begin(std::vector<kv::LeaseId> unread, std::vector<kv::LeaseId> held) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!announced_.empty()) return false;
    unread_ = std::move(unread);
    held_ = std::move(held);
    return true;
  }
  /// Of `held`, what was not taken.
  std::vector<kv::LeaseId> Held() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return held_;
  }
  /// What was taken.
  std::vector<kv::LeaseId> End() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    unread_.clear();
    held_.clear();
    return std::exchange(taken_, {});
  }
  /// False: it was taken since, and is not to be used.
  bool Accept(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    offered_.erase(lease);
    return taken_unaccepted_.erase(lease) == 0;
  }
  /// One of the drains that were announced of it: a hurried one may be on its way behind one with time.
  void Handled(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto it = announced_.find(lease);
    if (it != announced_.end() && --it->second == 0) announced_.erase(it);
  }

  // The coordinator's thread.
  /// Before the loop is told to use it.
  void Offer(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    offered_.insert(lease);
  }
  // REQUIRES: the lease drains.
  /// True: it is taken. False: the loop must be told, and handles it before it begins another step. `at_once`: false
  /// leaves it to the loop in any case.
  bool TakeOrAnnounce(kv::LeaseId lease, bool at_once) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (at_once && (TakeOfferedLocked(lease) || TakeLocked(unread_, lease))) return true;
    ++announced_[lease];
    return false;
  }
  bool Take(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return TakeOfferedLocked(lease) || TakeLocked(unread_, lease) || TakeLocked(held_, lease);
  }

 private:
  bool TakeLocked(std::vector<kv::LeaseId>& from, kv::LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = std::find(from.begin(), from.end(), lease);
    if (it == from.end()) return false;
    from.erase(it);
    taken_.push_back(lease);
    return true;
  }
  bool TakeOfferedLocked(kv::LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return offered_.erase(lease) > 0 && taken_unaccepted_.insert(lease).second;
  }

  mutable absl::Mutex mutex_;
  std::vector<kv::LeaseId> unread_ ABSL_GUARDED_BY(mutex_), held_ ABSL_GUARDED_BY(mutex_);  // empty between steps
  std::vector<kv::LeaseId> taken_ ABSL_GUARDED_BY(mutex_);                                  // in the step under way
  std::map<kv::LeaseId, int64_t> announced_ ABSL_GUARDED_BY(mutex_);                        // drains not handled, > 0
  std::set<kv::LeaseId> offered_ ABSL_GUARDED_BY(mutex_), taken_unaccepted_
      ABSL_GUARDED_BY(mutex_);  // not accepted yet
};

}  // namespace swiftcache::engine::coordinator
