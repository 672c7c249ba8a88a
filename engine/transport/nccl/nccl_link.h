// SPDX-License-Identifier: Apache-2.0
// One end of the communicator between two engines, and the thread that dispatches what crosses it: makes the
// communicator, posts groups in their order, watches their events, and gives up what does not come.
//
//   NcclLink link({.rank = 0, .patience = Transport::kReadPatience}, hooks, nccl, driver, clock);
//   link.Post(batch);  ... link.Admit(*batch, accepted);  ... link.AwaitPassed(*batch, 0);
//
// Both ends post the same groups in the same order, or NCCL mixes them up: the borrower's batches travel in the order in
// which it announces them, over a channel that keeps it; the donor posts each as it hears of it, and the borrower once
// it hears that the donor does (ACCEPTED). Hence no kernel waits on the borrower's device for a donor that is dead or
// refuses, and a lease that the donor refuses costs no communicator. One stream a link, so that the order of the calls
// is the order of the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/sync/timed_mutex.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/event_fence.h"
#include "engine/backend/fence.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/nccl/nccl_batch.h"
#include "engine/transport/nccl/nccl_trial.h"

namespace swiftcache::engine::transport::nccl {

/// A communicator is made when Form or Join asks for it, at rank 0 also when a batch is there and none is; whatever goes
/// wrong ends it, and all that was under way, and the next use makes another.
/// Thread-safety: safe. Ownership: owns thread, communicator, stream, and memory where stores land; borrows NCCL, driver
/// and clock, which outlive it and the batches' events. Errors: none; a batch ends whole or not, and `broken` says why.
class NcclLink {
 public:
  /// How long a communicator may take to come about and to carry its trial; NCCL looks for its ways between the two ranks.
  static constexpr absl::Duration kFormPatience = absl::Seconds(20);
  /// What is left to a batch that nobody wants any more to make progress: a living peer needs far less.
  static constexpr absl::Duration kHurriedPatience = absl::Milliseconds(50);
  /// Groups that land, at most: while one is copied on, the next comes.
  static constexpr int kLandings = 2;
  /// Work of this device that holds a transfer up for longer will not end: the device is lost.
  static constexpr absl::Duration kDevicePatience = absl::Seconds(60);

  struct Options {
    int rank = 0;  // 0 announces, 1 follows
    absl::Duration patience;
  };
  /// Called by the link's thread without a lock. The last call to any of them returns before Stop does.
  struct Hooks {
    std::function<bool(uint64_t number, const NcclUniqueId& id)> join;  // tells rank 1; rank 0's
    std::function<void()> formed;
    std::function<void(uint64_t number, const absl::Status& why)> broken;  // not by Stop
  };
  NcclLink(const Options& options, Hooks hooks, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock);
  ~NcclLink() { Stop(); }

  /// Rank 0: a communicator is wanted, ahead of its first batch.
  void Form() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Rank 1: the other end has made another.
  void Join(uint64_t number, const NcclUniqueId& id) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Gives up the communicator, if it still is this one or one before it.
  void Break(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Behind all others. False: its communicator, or this link, is at its end. The batch is over then: its groups count as
  /// passed, and `ended` is not called.
  bool Post(const NcclBatchPtr& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  /// The other end takes part, as far as these leases go: all of the batch's, 1 or 0. False: it was not asked, or said
  /// so before.
  bool Admit(NcclBatch& batch, const std::vector<uint8_t>& accepted) ABSL_LOCKS_EXCLUDED(mutex_);
  /// The other end's verdict has come. False: nobody waits for it.
  bool Conclude(NcclBatch& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  /// A group that was not ready is.
  void SetReady(NcclBatch& batch, size_t group, const backend::Fence& after) ABSL_LOCKS_EXCLUDED(mutex_);
  /// All groups are, and nobody wants them.
  void SetAllReady(NcclBatch& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  /// What is under way is not worth waiting for, unless it moves; of what is not announced yet, what nobody wants.
  void Hurry() ABSL_LOCKS_EXCLUDED(mutex_);

  bool HasPassed(const NcclBatch& batch, size_t group) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// The event of a group that is in the stream; null where it is not yet, or nothing is to wait for. Valid as
  /// long as the batch.
  const backend::cuda::EventFence* EventOf(const NcclBatch& batch, size_t group) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Until the group has passed or is lost.
  void AwaitPassed(const NcclBatch& batch, size_t group) const ABSL_LOCKS_EXCLUDED(mutex_);

  /// Begins to stop, without waiting: what is under way is lost.
  void StopSoon() ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_stopped() const { return has_stopped_; }  // then Stop returns at once
  void Stop();

 private:
  struct Joining {
    uint64_t number = 0;
    NcclUniqueId id = {};
  };
  // A group that NCCL has, and the stream not yet.
  struct Posting {
    NcclBatchPtr batch;
    std::shared_ptr<backend::cuda::EventFence> event;
  };
  struct Stage {  // of the oldest batch: while it stays the same, nothing moves
    const NcclBatch* batch = nullptr;
    size_t progress = 0;
    bool for_peer = false;  // that is who it waits for
    bool operator==(const Stage&) const = default;
  };

  void Run();
  bool AwaitWork() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Advance() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status BeginForming() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Announce() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PostNext() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<NcclRun> RunsOf(const NcclBatch& batch, NcclGroup& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Give(const NcclBatchPtr& batch, NcclGroup& group, const std::vector<NcclRun>& runs)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status OrderStream(NcclGroup& group) ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkPosted(NcclBatch& batch, std::shared_ptr<const backend::cuda::EventFence> event) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MarkDone() ABSL_LOCKS_EXCLUDED(mutex_);
  void Land(const NcclBatch& batch, const NcclGroup& group) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckPatience() ABSL_LOCKS_EXCLUDED(mutex_);
  void LoseUnannounced() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status HeedBreak() ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginJoining() ABSL_LOCKS_EXCLUDED(mutex_);
  std::pair<Stage, absl::Duration> OldestStage() const ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() ABSL_LOCKS_EXCLUDED(wake_mutex_) {
    TimedMutexLock lock(&wake_mutex_);
    changed_ = true;
  }
  void Note(bool& flag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    flag = true;
    Wake();
  }

  const Options options_;
  const Hooks hooks_;
  NcclApi& nccl_;
  backend::cuda::Driver& driver_;
  const Clock& clock_;

  mutable absl::Mutex mutex_;
  std::deque<NcclBatchPtr> batches_ ABSL_GUARDED_BY(mutex_);  // oldest first
  uint64_t given_up_ ABSL_GUARDED_BY(mutex_) = 0;             // the last communicator that was
  std::optional<Joining> joining_ ABSL_GUARDED_BY(mutex_);
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;            // a communicator
  std::optional<uint64_t> break_ ABSL_GUARDED_BY(mutex_);  // communicators up to that number
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Beside the other, whose unlocking would wake all who wait for a transfer. Locked last.
  TimedMutex wake_mutex_;
  bool changed_ ABSL_GUARDED_BY(wake_mutex_) = false;  // what the thread is to look at
  std::atomic<bool> has_stopped_ = false;

  // The thread only.
  std::optional<NcclComm> comm_;
  uint64_t comm_number_ = 0;
  bool forming_ = false, formed_ = false;
  absl::Time forming_since_;
  std::optional<NcclTrial> trial_;
  std::optional<Posting> posting_;
  std::optional<backend::cuda::Stream> stream_;
  backend::cuda::DeviceBytes landing_;         // rank 1's, of kLandings groups, as long as the stream
  int64_t num_received_ = 0, num_landed_ = 0;  // groups into it, and out of it
  Stage stage_;
  absl::Time stage_since_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport::nccl
