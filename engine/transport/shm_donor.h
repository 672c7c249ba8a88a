// SPDX-License-Identifier: Apache-2.0
// The donor's half of the shared-memory transport: shows granted memory to the borrower that the grant names, and
// copies in what it stores. Transport documents the calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "engine/transport/peer_memory.h"
#include "engine/transport/shm_generations.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

class ShmDonorChannel;

/// Thread-safety: safe. Ownership: owns the generation words and the thread that copies, shows leases, and maps and unmaps
/// what stores wait in; borrows memory, clock, events.
class ShmDonor {
 public:
  static absl::StatusOr<std::unique_ptr<ShmDonor>> Create(PeerMemory& memory, const Clock& clock,
                                                          TransportEvents& events);
  ~ShmDonor() { Stop(); }

  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRevoke(kv::LeaseId lease, absl::Duration time_left) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRenewed(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fence(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Takes no lock that a Fence takes. Cost: a look at each borrower, however many leases it has.
  void AddStats(TransportStats& stats) const ABSL_LOCKS_EXCLUDED(readers_mutex_);

  /// A connection came in. Called by the loop's thread.
  std::shared_ptr<ShmPeer> Meet(std::shared_ptr<ShmSocket> socket);
  /// Fences everything and joins. REQUIRES: the loop has stopped.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_, readers_mutex_);

 private:
  friend class ShmDonorChannel;  // a connection, on the loop's thread

  /// Shared: the thread that copies holds on to a grant that is fenced meanwhile.
  struct GrantState {
    GrantSpec spec;
    int32_t word = 0;
    kv::Epoch epoch;
    bool fenced = false;
    const ShmDonorChannel* taker = nullptr;    // whose borrower showed the capability; one at a time
    bool copying = false;                      // into this lease's memory, one bounded piece
    std::shared_ptr<ShmDonorChannel> channel;  // the taker, once its staging memory is mapped
    bool shown = false;                        // GRANT is sent there, and what comes after it may be
    std::optional<absl::Time> leave_by;        // of a revocation that no channel could carry yet
    std::deque<ShmStore> stores;               // not begun
  };
  using GrantPtr = std::shared_ptr<GrantState>;

  // What the thread does next.
  struct StoreJob {
    GrantPtr grant;
    std::shared_ptr<ShmDonorChannel> channel;
    ShmStore store;
  };
  struct ShowJob {  // of a HELLO that was admitted
    std::shared_ptr<ShmDonorChannel> channel;
    GrantPtr grant;
    int64_t staging_bytes = 0;
    std::vector<memory::UniqueFd> fds;
  };
  struct UnmapJob {  // dropped when it is done
    std::unique_ptr<PeerStaging> staging;
  };
  using Job = std::variant<std::monostate, StoreJob, ShowJob, UnmapJob>;

  ShmDonor(PeerMemory& memory, const Clock& clock, TransportEvents& events, ShmGenerations generations);

  absl::Status CheckSpec(const GrantSpec& spec) const;
  std::shared_ptr<ShmSocket> SocketOf(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  GrantPtr Find(kv::LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // What channels ask for, all on the loop's thread.
  absl::StatusOr<GrantPtr> Admit(const ShmHello& hello, const ShmDonorChannel& channel) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Leaves it to the thread: to map and to export much takes long.
  void ShowLater(ShowJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Enqueue(const GrantPtr& grant, const ShmDonorChannel& channel, const ShmStore& store)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// The channel is at its end. `grant`: its borrower's, unless that was released.
  void Detach(const ShmDonorChannel& channel, const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_, readers_mutex_);
  void ForgetReader(const ShmDonorChannel& channel) ABSL_LOCKS_EXCLUDED(readers_mutex_);
  /// Whoever is the last to hold a channel, a Fence perhaps, leaves what it mapped to the thread.
  void LeaveToThread(std::unique_ptr<PeerStaging> staging) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!stopping_ && staging != nullptr) to_unmap_.push_back(std::move(staging));
  }

  // The thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  Job NextJob() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<StoreJob> TakeStore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !with_stores_.empty() || !to_show_.empty() || !to_unmap_.empty();
  }
  void Do(const StoreJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Begin(const StoreJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const ShowJob& job) ABSL_LOCKS_EXCLUDED(mutex_, readers_mutex_);
  absl::Status Show(const ShowJob& job) ABSL_LOCKS_EXCLUDED(mutex_, readers_mutex_);
  absl::Status CheckAwaited(const ShowJob& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Attach(const ShowJob& job, std::unique_ptr<PeerStaging> staging)
      ABSL_LOCKS_EXCLUDED(mutex_, readers_mutex_);
  void SendGrant(const ShowJob& job, const ShownMemory& shown) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const UnmapJob&) {}
  void Do(std::monostate) {}

  PeerMemory& memory_;
  const Clock& clock_;
  TransportEvents& events_;
  std::vector<ShmDonorChannel*> strangers_;  // the loop's thread only; oldest first
  mutable absl::Mutex mutex_;  // after readers_mutex_, and after ShmLoop's, under which channels are dropped
  ShmGenerations generations_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<kv::LeaseId, GrantPtr> grants_ ABSL_GUARDED_BY(mutex_);
  std::deque<GrantPtr> with_stores_ ABSL_GUARDED_BY(mutex_);  // each once, in turn
  std::deque<ShowJob> to_show_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<PeerStaging>> to_unmap_ ABSL_GUARDED_BY(mutex_);
  uint32_t turn_ ABSL_GUARDED_BY(mutex_) = 0;  // of the kinds of jobs
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> received_bytes_{0};
  mutable absl::Mutex readers_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  /// By borrower: the open channels of its leases, which show one staging memory.
  absl::flat_hash_map<std::string, std::vector<std::shared_ptr<const ShmDonorChannel>>> readers_
      ABSL_GUARDED_BY(readers_mutex_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport
