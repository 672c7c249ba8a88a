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

/// Thread-safety: safe. Ownership: owns the generation words and the thread that copies; borrows memory, clock,
/// events.
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
    bool taken = false;                        // a borrower showed the capability; one at a time
    bool copying = false;                      // into this lease's memory, one bounded piece
    std::shared_ptr<ShmDonorChannel> channel;  // the borrower's, once GRANT is sent
    std::optional<absl::Time> leave_by;        // of a revocation that no channel could carry yet
    std::deque<ShmStore> stores;               // not begun
  };
  using GrantPtr = std::shared_ptr<GrantState>;

  ShmDonor(PeerMemory& memory, const Clock& clock, TransportEvents& events, ShmGenerations generations);

  absl::Status CheckSpec(const GrantSpec& spec) const;
  std::shared_ptr<ShmSocket> SocketOf(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  GrantPtr Find(kv::LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // What channels ask for, all on the loop's thread.
  absl::StatusOr<GrantPtr> Admit(const ShmHello& hello) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SendGrant(const GrantState& grant, ShmSocket& socket) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Attach(const GrantPtr& grant, std::shared_ptr<ShmDonorChannel> channel)
      ABSL_LOCKS_EXCLUDED(mutex_, readers_mutex_);
  absl::Status Enqueue(const GrantPtr& grant, const ShmDonorChannel& channel, const ShmStore& store)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Detach(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetReader(const ShmDonorChannel& channel) ABSL_LOCKS_EXCLUDED(readers_mutex_);

  // The thread that copies.
  void Copy() ABSL_LOCKS_EXCLUDED(mutex_);
  void CopyIn(const GrantPtr& grant, const std::shared_ptr<ShmDonorChannel>& channel, const ShmStore& store)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool Begin(const GrantPtr& grant, const std::shared_ptr<ShmDonorChannel>& channel) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !with_stores_.empty(); }

  PeerMemory& memory_;
  const Clock& clock_;
  TransportEvents& events_;
  std::vector<ShmDonorChannel*> strangers_;  // the loop's thread only; oldest first
  mutable absl::Mutex mutex_;
  ShmGenerations generations_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<kv::LeaseId, GrantPtr> grants_ ABSL_GUARDED_BY(mutex_);
  std::deque<GrantPtr> with_stores_ ABSL_GUARDED_BY(mutex_);  // each once, in turn
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> received_bytes_{0};
  mutable absl::Mutex readers_mutex_;
  /// By borrower: the open channels of its leases, which show one staging memory.
  absl::flat_hash_map<std::string, std::vector<std::shared_ptr<const ShmDonorChannel>>> readers_
      ABSL_GUARDED_BY(readers_mutex_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport
