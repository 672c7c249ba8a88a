// SPDX-License-Identifier: Apache-2.0
// The borrower's half of the NCCL transport: opens leases, sets transfers going, tells what comes back. Transport
// documents the calls.
//
//   const NcclBegun begun = borrower.Begin({.kind = NcclKind::kLoad, .moves = moves, .after = after});
//   std::vector<kv::LeaseId> lost = borrower.AwaitLost(begun);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/driver.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/nccl/nccl_transfer.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::nccl {

/// Channels stay when their last lease is closed: a communicator is dear. Thread-safety: safe. Ownership: owns leases,
/// channels and the thread that dials; borrows NCCL, driver, clock, events, loop.
class NcclBorrower {
 public:
  NcclBorrower(std::string instance_id, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
               TransportEvents& events);
  ~NcclBorrower() { Stop(); }
  /// Starts. REQUIRES: before any other call; `loop` outlives this.
  void Start(ShmLoop& loop);

  void Open(const OpenSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRenewal(kv::LeaseId lease, int64_t heat) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRelease(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Abandon(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(kv::LeaseId lease) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Each donor's moves in a message of their own; more than a message carries in several, or lost if they are a
  /// stream's, whose layers cross all at once. Stores are answered.
  NcclBegun Begin(NcclMoves moves) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Waits until they are over. What was lost of them.
  std::vector<kv::LeaseId> AwaitLost(const NcclBegun& begun) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// So far.
  std::vector<kv::LeaseId> LostOf(const NcclBegun& begun) const ABSL_LOCKS_EXCLUDED(mutex_);
  void AddStats(TransportStats& stats) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Joins; what is under way is lost. REQUIRES: the loop has stopped.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class NcclBorrowerChannel;  // on the loop's thread and its link's
  using ChannelPtr = std::shared_ptr<NcclBorrowerChannel>;
  using Event = std::function<void(TransportEvents&)>;

  // The thread, which dials and tells: what happens to a lease is told in the order in which it happens.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Later(std::function<void()> job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { jobs_.push_back(std::move(job)); }
  void TellLater(const NcclLeasePtr& lease, Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Unless the lease is closed; Close waits for its end.
  void Tell(NcclLease& lease, const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void Dial(const NcclLeasePtr& lease) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ChannelPtr> ChannelTo(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);

  // Transfers (nccl_borrower_transfers.cc).
  void Assign(const NcclMoves& moves, NcclBegun& begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NcclTransferPtr TransferFor(const NcclMoves& moves, const NcclLeasePtr& lease, int64_t more, NcclBegun& begun)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const NcclMoves& moves, const NcclMove& move, NcclBegun& begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(const NcclMoves& moves, const NcclTransferPtr& transfer) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTransferEnded(const NcclTransferPtr& transfer, bool whole) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteTime(const NcclTransfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerStores(NcclTransfer& transfer, const NcclLease* only, const absl::Status& fate)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWanted(const NcclTransfer& transfer) const ABSL_LOCKS_EXCLUDED(mutex_);  // of any of its leases
  bool MarkLost(const NcclLease& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<kv::LeaseId> LostLocked(const NcclBegun& begun) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // What channels hear, and their links.
  absl::Status OnGranted(NcclBorrowerChannel& channel, const NcclGranted& granted) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFormed(NcclBorrowerChannel& channel) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBroken(NcclBorrowerChannel& channel, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnClosed(NcclBorrowerChannel& channel, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFenced(const NcclBorrowerChannel& channel, const NcclEnded& ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnRefused(const NcclBorrowerChannel& channel, kv::LeaseId id, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLease(const NcclLeasePtr& lease, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetOpen(const NcclLeasePtr& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Also while its communicator forms: for its donor it is open.
  void TellGranted(const NcclBorrowerChannel& channel, kv::LeaseId id, Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  NcclTransferPtr FindAnnounced(const NcclBorrowerChannel& channel, int64_t batch) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAnnounced(NcclBorrowerChannel& channel, int64_t batch, const NcclTransferPtr& transfer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAnswer(NcclTransfer& transfer, const NcclAnswer& answer) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Of all donors.
  int64_t num_leases() const ABSL_LOCKS_EXCLUDED(mutex_);
  NcclLeasePtr Find(kv::LeaseId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NcclLeasePtr FindOf(const NcclBorrowerChannel& channel, kv::LeaseId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<NcclLeasePtr> LeasesOf(const NcclBorrowerChannel& channel) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ChannelPtr OpenChannelOf(kv::LeaseId id) const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string instance_id_;
  NcclApi& nccl_;
  backend::cuda::Driver& driver_;
  const Clock& clock_;
  TransportEvents& events_;
  ShmLoop* loop_ = nullptr;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<kv::LeaseId, NcclLeasePtr> leases_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChannelPtr> channels_ ABSL_GUARDED_BY(mutex_);        // also those that end, until they have
  std::vector<NcclTransferPtr> transfers_ ABSL_GUARDED_BY(mutex_);  // not over
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  TransportStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_stored_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time last_loaded_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport::nccl
