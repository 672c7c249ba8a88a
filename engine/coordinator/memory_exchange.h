// SPDX-License-Identifier: Apache-2.0
// The thread that gives leases memory of their own, and what comes back other memory, where the transport does so
// (Transport::exchanges). Neither the thread that fences nor the loop waits for it.
//
//   exchange.Prepare(part, [=](const absl::Status& ready) { ... transport.Grant(...) ... });
//   exchange.Return(id, part, [=] { ... the loop knows that it must do without for now ... },
//                   [=] { ... the loop has its memory back ... });
//   exchange.WhenBack(id, [=] { ... the broker hears of it ... });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/sync/timed_mutex.h"
#include "engine/kv/lease_id.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// What is to be done then is done in the call where the transport exchanges nothing; else it is posted once it may be.
/// A part for which there is no other memory is tried again every kAgain, and stays out of use so long: its owner's
/// secrets are worth more than its room. Other parts do not wait for it.
/// Thread-safety: none, the coordinator's thread owns it; Start and Stop come before and after that one. Ownership: owns
/// its thread; borrows the transport. Errors: none.
class MemoryExchange {
 public:
  static constexpr absl::Duration kAgain = absl::Milliseconds(100);
  struct Part {
    int64_t offset_bytes = 0, bytes = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  using Then = std::function<void()>;

  MemoryExchange(const Clock& clock, Metrics& metrics);
  /// `post`: runs something on the thread that owns this; safe, and without effect once that one has ended.
  void Start(transport::Transport& transport, std::function<void(Then)> post);
  void Prepare(const Part& part, std::function<void(const absl::Status&)> then);
  /// Where the part is not being made ready yet, CANCELLED is the answer to its Prepare.
  void Forgo(const Part& part) ABSL_LOCKS_EXCLUDED(mutex_);
  /// `withheld`: what is to be done before, if at first there is no other memory.
  void Return(kv::LeaseId id, const Part& part, Then withheld, Then then);
  /// After what Return was told, or now: the lease is not on its way back.
  void WhenBack(kv::LeaseId id, Then then);
  /// Not what is withheld by now: nobody knows when there is other memory.
  bool any_returning() const;
  /// Joins; what was not begun is not done.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    Part part;
    std::function<void(const absl::Status&)> prepared;  // empty: it is a return
    kv::LeaseId returned;
    Then withheld;  // of a return that was not refused yet
  };
  struct Returning {
    std::vector<Then> then;  // what is to be done, in order
    bool withheld = false;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  Job TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(absl::Time due, Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Returned(kv::LeaseId id);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!jobs_.empty() && jobs_.begin()->first <= clock_.Now());
  }

  const Clock& clock_;
  prometheus::Histogram& seconds_;
  transport::Transport* transport_ = nullptr;
  std::function<void(Then)> post_;
  std::map<kv::LeaseId, Returning> returning_;
  TimedMutex mutex_;
  std::multimap<absl::Time, Job> jobs_ ABSL_GUARDED_BY(mutex_);  // by when they are due
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::coordinator
