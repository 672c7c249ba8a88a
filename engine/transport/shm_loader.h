// SPDX-License-Identifier: Apache-2.0
// Copies pieces of leases into local memory, and knows which of them can be trusted: on a thread, or, where that has not
// begun yet, on the one that waits, which has a core. Transport documents Load and Await.
//
//   const std::shared_ptr<const PendingLoad> load = loader.Begin(pieces, after);
//   for (kv::LeaseId lost : load->Await()) ...
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/address_space.h"
#include "engine/backend/fence.h"
#include "engine/transport/peer_memory.h"
#include "engine/transport/shm_borrower.h"
#include "engine/transport/shm_throttle.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// Thread-safety: safe. Ownership: owns its thread; borrows the leases and the clock.
class ShmLoader final : public LeaseLoader {
 public:
  struct Options {
    ShmThrottle::Options link;
    backend::AddressSpace space;
  };
  ShmLoader(const ShmBorrower& leases, const Options& options, const Clock& clock);
  ~ShmLoader() override { Stop(); }

  std::shared_ptr<const PendingLoad> Begin(std::vector<LoadPiece> pieces, const backend::Fence& after) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AddStats(TransportStats& stats) const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Job;
  class Arrived;
  using JobPtr = std::shared_ptr<Job>;

  bool HasArrived(const Job& job) const ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitFor(const Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  JobPtr TakeUnbegun(const Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<std::vector<kv::LeaseId>> LostOf(const Job& job) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void SendOff(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(Job& job, std::vector<kv::LeaseId> lost) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<kv::LeaseId> Copy(const std::vector<LoadPiece>& pieces) const;
  bool CopyRun(const ShmLease& lease, const LoadPiece& run) const;
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !to_copy_.empty(); }
  bool NobodyCopies() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiters_that_copy_ == 0; }

  const ShmBorrower& leases_;
  const backend::AddressSpace space_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  std::deque<JobPtr> to_copy_ ABSL_GUARDED_BY(mutex_);
  ShmThrottle link_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_loaded_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  TransportStats stats_ ABSL_GUARDED_BY(mutex_);
  int waiters_that_copy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport
