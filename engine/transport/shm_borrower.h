// SPDX-License-Identifier: Apache-2.0
// The borrower's half of the shared-memory transport, but for loads: opens leases, carries stores to their donors
// through staging memory, tells what comes back. Transport documents the calls.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/fence.h"
#include "engine/transport/peer_memory.h"
#include "engine/transport/shm_lease.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/shm_throttle.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// Thread-safety: safe. Ownership: owns leases and the thread that opens, maps and unmaps them and copies; borrows memory,
/// clock, events, loop.
class ShmBorrower {
 public:
  struct Options {
    std::string instance_id;
    ShmThrottle::Options link;
  };
  ShmBorrower(const Options& options, PeerMemory& memory, const Clock& clock, TransportEvents& events);
  ~ShmBorrower() { Stop(); }
  /// Starts. REQUIRES: before any other call; `loop` outlives this.
  void Start(ShmLoop& loop);

  void Open(const OpenSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRenewal(kv::LeaseId lease, int64_t heat) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRelease(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Abandon(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Store(Ticket ticket, const StorePiece& piece, const backend::Fence& after) ABSL_LOCKS_EXCLUDED(mutex_);
  /// The lease, where it is open: its view stays mapped as long as somebody holds this.
  std::shared_ptr<const ShmLease> Find(kv::LeaseId lease) const ABSL_LOCKS_EXCLUDED(mutex_);
  void AddStats(TransportStats& stats) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Joins; unfinished stores are forgotten. REQUIRES: the loop has stopped.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class ShmBorrowerChannel;  // a lease's channel, on the loop's thread
  using LeasePtr = std::shared_ptr<ShmLease>;

  // What the thread does next.
  struct OpenJob {
    LeasePtr lease;
  };
  struct MapJob {  // what a GRANT brought
    LeasePtr lease;
    ShmGrantMessage grant;
    std::vector<memory::UniqueFd> fds;
  };
  struct CopyJob {
    LeasePtr lease;
    ShmLease::StoreJob store;
  };
  struct SendJob {  // a store whose bytes have crossed the link
    absl::Time due;
    LeasePtr lease;
    ShmStore message;
  };
  struct RefuseJob {
    Ticket ticket;
    absl::Status why;
  };
  struct UnmapJob {  // dropped when it is done
    LeasePtr lease;
  };
  using Job = std::variant<std::monostate, OpenJob, MapJob, CopyJob, SendJob, RefuseJob, UnmapJob>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  Job NextJob() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<CopyJob> TakeCopyJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanStore(const ShmLease& lease) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const OpenJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const MapJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const CopyJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  bool BeginCopy(const CopyJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CopyOut(const CopyJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void FailCopy(const CopyJob& job, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const SendJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const RefuseJob& job) { events_.OnStored(job.ticket, job.why); }
  void Do(const UnmapJob&) {}
  void Do(std::monostate) {}
  /// Whoever may be the last to hold a closed lease leaves it to the thread: to unmap much takes long.
  void LeaveToThread(LeasePtr lease) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) to_unmap_.push_back(std::move(lease));
  }
  absl::StatusOr<std::shared_ptr<ShmStaging>> StagingFor(const OpenSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Connect(const LeasePtr& lease) ABSL_LOCKS_EXCLUDED(mutex_);

  // What the loop's thread hears.
  /// Leaves it to the thread: to map much, and to measure a link, takes long.
  void OnGrant(LeasePtr lease, ShmGrantMessage message, std::vector<memory::UniqueFd> fds) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status OnStored(ShmLease& lease, Ticket ticket) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndStores(ShmLease& lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnd(ShmLease& lease, absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<ShmSocket> SocketOf(kv::LeaseId lease) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Calls event(events) unless the lease is closed; Close waits for its end.
  template <typename Event>
  void Notify(ShmLease& lease, Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (lease.closed) return;
      ++lease.telling;
    }
    event(events_);
    absl::MutexLock lock(&mutex_);
    --lease.telling;
  }

  const Options options_;
  PeerMemory& memory_;
  const Clock& clock_;
  TransportEvents& events_;
  ShmLoop* loop_ = nullptr;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<kv::LeaseId, LeasePtr> leases_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::weak_ptr<ShmStaging>> stagings_;  // by donor's channel; the thread only
  std::deque<LeasePtr> to_open_ ABSL_GUARDED_BY(mutex_);
  std::deque<MapJob> to_map_ ABSL_GUARDED_BY(mutex_);
  std::deque<RefuseJob> to_refuse_ ABSL_GUARDED_BY(mutex_);
  std::deque<LeasePtr> to_unmap_ ABSL_GUARDED_BY(mutex_);
  std::deque<SendJob> to_send_ ABSL_GUARDED_BY(mutex_);    // by the time they are due
  std::deque<LeasePtr> to_store_ ABSL_GUARDED_BY(mutex_);  // each once, in turn
  ShmThrottle link_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_stored_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  TransportStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport
