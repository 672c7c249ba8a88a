// SPDX-License-Identifier: Apache-2.0
// The donor's half of the NCCL transport: sends granted memory to the borrower that the grant names, and copies into it
// what that one stores, from where its link receives it. Transport documents the calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/device_address.h"
#include "engine/transport/message_limit.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/nccl/nccl_batch.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::nccl {

class NcclDonorChannel;

/// Thread-safety: safe. Ownership: owns the channels of its borrowers; borrows NCCL, driver, clock, events.
class NcclDonor {
 public:
  /// A borrower that is there may rightly take long before it receives a layer: its own step computes, or waits for
  /// another donor. One that is gone, or gives up, is heard of at once.
  static constexpr absl::Duration kBorrowerPatience = absl::Seconds(5);

  struct Options {
    backend::DeviceAddress arena;
    int64_t arena_bytes = 0;
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
    bool copying = false;                       // into its memory, perhaps: one group of a store
    std::shared_ptr<NcclDonorChannel> channel;  // of the borrower that has it open
    std::optional<absl::Time> leave_by;         // as its borrower was told, or will be
  };
  using GrantPtr = std::shared_ptr<GrantState>;

  /// A batch that crosses.
  struct Crossing {
    int64_t batch = 0;
    bool stores = false;
    const NcclDonorChannel* channel = nullptr;
    std::vector<GrantPtr> grants;   // by the batch's leases; null: unknown
    std::vector<uint8_t> accepted;  // whose pieces cross,
    std::vector<uint8_t> held;      // and are what they promise: 1 or 0, likewise
    int64_t bytes = 0;
  };

  absl::Status CheckSpec(const GrantSpec& spec) const;
  GrantPtr Find(kv::LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<NcclDonorChannel> ChannelOf(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndGrant(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);

  // What channels ask for.
  absl::StatusOr<GrantPtr> Admit(const NcclOpen& open, std::shared_ptr<NcclDonorChannel> channel)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<absl::Time> LeaveBy(const GrantState& grant) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Detach(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Its borrower gives it back.
  void Release(const GrantPtr& grant) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Accepts what goes to, or comes from, leases that hold now.
  void Begin(Crossing& crossing) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Copies a group of a store into its leases, but for those that do not hold any more, or are not open on the batch's
  /// channel. Waits for the copy. Called by a link's thread.
  void Land(Crossing& crossing, const NcclGroup& group) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<GrantPtr> BeginCopy(Crossing& crossing) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndCopy(const std::vector<GrantPtr>& into) ABSL_LOCKS_EXCLUDED(mutex_);
  /// The verdict, which leases have held all the while. `whole`: all has crossed.
  void End(Crossing& crossing, bool whole) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  NcclApi& nccl_;
  backend::cuda::Driver& driver_;
  const Clock& clock_;
  TransportEvents& events_;
  std::vector<NcclDonorChannel*> strangers_;  // the loop's thread only; oldest first
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<kv::LeaseId, GrantPtr> grants_ ABSL_GUARDED_BY(mutex_);
  /// Until their links' threads have ended, which call them.
  std::vector<std::shared_ptr<NcclDonorChannel>> channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> received_bytes_{0}, sent_bytes_{0};
  backend::cuda::CopyLane lane_;  // stores, on from where they landed
};

}  // namespace swiftcache::engine::transport::nccl
