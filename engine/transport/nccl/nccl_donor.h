// SPDX-License-Identifier: Apache-2.0
// The donor's half of the NCCL transport: sends granted memory to the borrower that the grant names, and receives into
// it what that one stores. Transport documents the calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/sync/timed_mutex.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/device_address.h"
#include "engine/transport/message_limit.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::nccl {

class NcclDonorChannel;

/// Thread-safety: safe. Ownership: owns the channels of its borrowers; borrows NCCL, driver, clock, events.
class NcclDonor {
 public:
  /// How long a Fence waits at most for what a borrower stores, before it gives up the communicator that brings it.
  static constexpr absl::Duration kFencePatience = absl::Milliseconds(5);
  /// A borrower that is there may rightly take long before it receives a layer: its own step computes, or waits for
  /// another donor. One that is gone, or gives up, is heard of at once.
  static constexpr absl::Duration kBorrowerPatience = absl::Seconds(5);

  struct Options {
    backend::DeviceAddress arena;
    int64_t arena_bytes = 0;
    absl::Duration fence_patience = kFencePatience;  // or less: NcclTransport::Options
  };
  NcclDonor(const Options& options, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
            TransportEvents& events);
  ~NcclDonor();

  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRevoke(kv::LeaseId lease, absl::Duration time_left) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRenewed(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fence(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Takes no lock.
  void AddStats(TransportStats& stats) const;

  /// A connection came in. Called by the loop's thread.
  std::shared_ptr<ShmLoopPeer> Meet(std::shared_ptr<ShmSocket> socket);
  /// Fences everything and joins. REQUIRES: the loop has stopped.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class NcclDonorChannel;  // a connection, on the loop's thread and its link's

  /// Shared: a batch under way holds on to a grant that is fenced meanwhile.
  struct GrantState {
    GrantSpec spec;
    kv::Epoch epoch;
    bool fenced = false;
    bool released = false;                       // by its borrower: it ends with what is still received
    std::shared_ptr<NcclDonorChannel> channel;   // of the borrower that has it open
    std::optional<absl::Time> leave_by;          // as its borrower was told, or will be
    int receiving = 0;                           // batches that write into it
    std::shared_ptr<NcclDonorChannel> receiver;  // whose link they come by,
    uint64_t number = 0;                         // on this communicator or those before it
  };
  using GrantPtr = std::shared_ptr<GrantState>;

  absl::Status CheckSpec(const GrantSpec& spec) const;
  GrantPtr Find(kv::LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<NcclDonorChannel> ChannelOf(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitReceived(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);

  // What channels ask for.
  absl::StatusOr<GrantPtr> Admit(const NcclOpen& open, std::shared_ptr<NcclDonorChannel> channel)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<absl::Time> LeaveBy(const GrantState& grant) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Detach(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Its borrower gives it back. Waits for nothing.
  void Release(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndRelease(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whose leases hold now, 1 or 0 in the order of `grants`; null is none. Where the batch is one of stores, Fence
  /// waits for its End from here on. `number`: of the communicator that it comes by.
  std::vector<uint8_t> Begin(std::span<const GrantPtr> grants, bool stores,
                             const std::shared_ptr<NcclDonorChannel>& channel, uint64_t number)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whose leases have held all the while. `bytes`: that crossed.
  std::vector<uint8_t> End(std::span<const GrantPtr> grants, std::span<const uint8_t> accepted, bool stores,
                           int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  NcclApi& nccl_;
  backend::cuda::Driver& driver_;
  const Clock& clock_;
  TransportEvents& events_;
  std::vector<NcclDonorChannel*> strangers_;  // the loop's thread only; oldest first
  mutable TimedMutex mutex_;
  absl::flat_hash_map<kv::LeaseId, GrantPtr> grants_ ABSL_GUARDED_BY(mutex_);
  /// Until their links' threads have ended, which call them.
  std::vector<std::shared_ptr<NcclDonorChannel>> channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> received_bytes_{0}, sent_bytes_{0};
};

}  // namespace swiftcache::engine::transport::nccl
