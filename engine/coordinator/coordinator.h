// SPDX-License-Identifier: Apache-2.0
// The coordinator of an engine (paper, section 3.5): the thread that drives both halves of its leases, between broker,
// transport and step loop. It lives beside the loop, so that a memory that is due is fenced in time while a step, or a
// loop that hangs, goes on. Here are the thread and what it hears; what is done about leases that the engine gives is in
// donor_side.h, about those that it takes in borrower_side.h.
//
//   Coordinator coordinator(options, clock, metrics);
//   coordinator.Start(&transport, &broker, [&mailbox](LoopMessage message) { mailbox.Push(std::move(message)); });
//   coordinator.WishForMemory(64 << 20, waiting_tokens);   // -> UseMessage, some time
//   coordinator.NeedBack(12, blocks_lent);              // -> TakeBackMessage, within revoke_deadline
//
// A lease's life; on the left the donor's process, on the right the borrower's:
//
//   broker: OnLease(OFFERED)
//   Donor::ClearExtent -> ClearMessage, StopClearing likewise
//   Cleared -> Donor::Grant -> MemoryExchange::Prepare -> Transport::Grant
//   Donor::Say GRANTED --------- broker -------------> OnLease(GRANTED)
//                                                      Borrower::Open -> Transport::Open
//   OnBorrowerOpened <--------- transport -----------> OnOpened
//                                                      Borrower::Use -> UseMessage
//   OnRenewal, SendRenewed <--- transport -----------> SendRenewal, OnRenewed: each third of the ttl, and NoteHeat
//   NeedBack -> broker: RequestScaleUp -> OnScaleUp: how much, and whose. Where there is no choice whose, what is
//     needed does not wait for it; nor does it longer than broker_patience, or if the broker fails
//   SendRevoke ---------------- transport -----------> OnRevoked
//                                                      Borrower::Drain -> DrainMessage, if the step under way reads it,
//                                                      Drained -> SendRelease, Close
//                                                      or else SendRelease -> StepReads::End, Dropped -> Close
//   OnReleased <--------------- transport ------------
//   Donor::TakeBack -> MemoryExchange::Return -> TakeBackMessage; Say RELEASED
//
// A donor waits for nobody: what is not released shortly before revoke_deadline ends with Donor::Fence, TakeBack and
// Say FENCED, and over there with Borrower::Lose -> LoseMessage -> Dropped -> Close. Its deadlines are looked at between
// any two messages; each is acted on before anything is said of it; and nothing that the thread calls waits for more
// than one copy (Transport::kMaxCopyBytes).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/sync/mailbox.h"
#include "common/sync/timed_mutex.h"
#include "engine/coordinator/borrower_side.h"
#include "engine/coordinator/coordinator_options.h"
#include "engine/coordinator/donor_side.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/coordinator/step_reads.h"
#include "engine/lease/account.h"
#include "engine/lease/borrower.h"
#include "engine/lease/donor.h"
#include "engine/lease/lease.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: safe, but for Attach, Turn, NextDeadline and the halves; nothing blocks but Stop and Turn. Ownership: borrows
/// transport, broker, clock and metrics, which outlive it; owns its thread. Errors: none: what fails is a lease less.
/// Units: as named.
class Coordinator final : public LoopEvents, public transport::TransportEvents, public LeaseBrokerEvents {
 public:
  using Options = CoordinatorOptions;
  Coordinator(const Options& options, const Clock& clock, Metrics& metrics);
  ~Coordinator() override;

  /// Called once. What is said before it waits for it. `push`: hands the step loop a message; called by this thread and
  /// those of the transport until both have stopped, and must not block.
  void Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push);

  // Instead of Start, who has a time of its own (tests/sim) attaches what it drives, and takes the thread's turns itself:
  // whenever something was said, and at NextDeadline.
  void Attach(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push);
  /// One turn: waits for messages, until NextDeadline and for `patience` at most; handles what has arrived, in order, and
  /// what is due. True: it was the last, after Stop.
  bool Turn(absl::Duration patience);
  absl::Time NextDeadline() const { return std::min(donor_side_.NextDeadline(), borrower_side_.NextDeadline()); }
  const lease::Donor& donor() const { return donor_side_.donor(); }
  const lease::Borrower& borrower() const { return borrower_side_.borrower(); }

  /// The engine ends: lends no more, and asks back what it lends, until `deadline`. Borrowers have time to move what they
  /// have there. Does not wait; the loop goes on, and what it needs itself is back as soon as ever.
  void AskBackAll(absl::Time deadline);
  /// Takes back and gives back everything, as soon as peers answer. Does not wait: what Stop begins with.
  void ReturnAll();
  /// Takes back and gives back everything, as far as peers answer until `deadline`, then fences, and joins. The loop
  /// goes on answering meanwhile.
  void Stop(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // From the step loop.
  void Cleared(kv::LeaseId id, bool ok) override;
  void Drained(kv::LeaseId id) override;
  void Dropped(kv::LeaseId id) override;
  void GenerationChanged(kv::LeaseId id) override;
  void StoreFailed(kv::LeaseId id, const absl::Status& why) override;
  void DonorSilent(kv::LeaseId id) override;
  void GiveBack(kv::LeaseId id) override;
  void NoteHeat(kv::LeaseId id, int64_t heat) override;
  StepReads& step_reads() override { return borrower_side_.step_reads(); }
  void NeedBack(int64_t blocks, int64_t blocks_lent) override;
  void WishForMemory(int64_t bytes, int64_t waiting_tokens) override;
  void ReportWindow(const Window& window) override;

  DonorSide::Reclaims reclaims() const { return donor_side_.reclaims(); }
  /// Leases that this engine gives, for registration.
  std::vector<lease::Lease> Given() const { return donor_side_.Given(); }
  /// What it has lent to the engines of each model, until now. Time is counted by whoever asks; a lease that ends just
  /// then may count a moment longer, and less the next time.
  std::map<std::string, lease::Account> Accounts() const { return donor_side_.Accounts(); }

  // From the broker.
  void OnTerms(const LeaseTerms& terms) override;
  void OnLease(const lease::Lease& lease) override;
  void OnLeases(const std::vector<lease::Lease>& leases) override;
  void OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) override;
  void OnScaleUp(int64_t question, absl::StatusOr<std::vector<kv::LeaseId>> leases) override;
  /// Donor::SetWeights: what to go by where the advice on whose lease to revoke comes too late.
  void OnWeights(const std::map<std::string, int64_t>& weights);
  void OnReportRefused(const LeaseEvent& news, const absl::Status& why) override;

  // From the transport.
  void OnBorrowerOpened(kv::LeaseId lease) override;
  void OnRenewal(kv::LeaseId lease, int64_t heat) override;
  void OnReleased(kv::LeaseId lease) override;
  void OnBorrowerGone(kv::LeaseId lease) override;
  void OnOpened(kv::LeaseId lease, absl::StatusOr<transport::LeaseView> view) override;
  void OnRenewed(kv::LeaseId lease) override;
  void OnRevoked(kv::LeaseId lease, absl::Duration time_left) override;
  void OnDonorGone(kv::LeaseId lease) override;
  void OnStored(transport::Ticket ticket, absl::Status status) override {
    push_(StoredMessage{ticket, std::move(status)});
  }

 private:
  using Message = std::function<void(absl::Time now)>;  // run by the thread

  void Post(Message message) { mailbox_.Push(std::move(message)); }
  void Run();
  void Act();
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);
  bool AllEndedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return all_returned_ || ended_; }

  const Clock& clock_;
  LeaseBroker* broker_ = nullptr;
  std::function<void(LoopMessage)> push_;  // to the loop
  Mailbox<Message> mailbox_;               // peers are few, and what each may say is bounded
  DonorSide donor_side_;
  BorrowerSide borrower_side_;
  bool returns_all_ = false;  // the thread only

  TimedMutex mutex_;
  bool all_returned_ ABSL_GUARDED_BY(mutex_) = false;  // since ReturnAll nothing is held, neither given nor taken
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::coordinator
