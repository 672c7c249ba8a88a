// SPDX-License-Identifier: Apache-2.0
// The coordinator of an engine (paper, section 3.5): the thread that drives both halves of its leases, between broker,
// transport and step loop. It lives beside the loop, so that a memory that is due is fenced in time while a step, or a
// loop that hangs, goes on.
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
//   OnRenewal, SendRenewed <--- transport -----------> SendRenewal, OnRenewed: each third of the ttl
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

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/sync/mailbox.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/coordinator/loop_message.h"
#include "engine/coordinator/memory_exchange.h"
#include "engine/coordinator/step_reads.h"
#include "engine/lease/account.h"
#include "engine/lease/borrower.h"
#include "engine/lease/donor.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: safe; nothing blocks but Stop. Ownership: borrows transport, broker, clock and metrics, which
/// outlive it; owns its thread. Errors: none: what fails is a lease less. Units: as named.
class Coordinator final : public transport::TransportEvents, public LeaseBrokerEvents {
 public:
  struct Options {
    std::string instance_id;
    absl::Duration revoke_deadline = absl::Milliseconds(50);
    absl::Duration ttl = LeaseTerms().ttl;                   // until OnTerms
    absl::Duration broker_patience = absl::Milliseconds(3);  // for its advice on whose lease to revoke
    int64_t num_blocks = 0, block_bytes = 0;                 // of this engine's arena
    int64_t never_lent_blocks = 0;                           // the first of these
    absl::Duration min_request_interval = absl::Milliseconds(200);
    absl::Duration max_request_interval = absl::Seconds(5);  // while there is a shortage
  };
  Coordinator(const Options& options, const Clock& clock, Metrics& metrics);
  ~Coordinator() override;

  /// Called once. What is said before it waits for it. `push`: hands the step loop a message; called by this thread and
  /// those of the transport until both have stopped, and must not block.
  void Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push);
  /// The engine ends: lends no more, and asks back what it lends, until `deadline`. Borrowers have time to move what they
  /// have there. Does not wait; the loop goes on, and what it needs itself is back as soon as ever.
  void AskBackAll(absl::Time deadline);
  /// Takes back and gives back everything, as far as peers answer until `deadline`, then fences, and joins. The loop
  /// goes on answering meanwhile.
  void Stop(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // From the step loop.
  void Cleared(kv::LeaseId id, bool ok);
  void Drained(kv::LeaseId id);
  void Dropped(kv::LeaseId id);
  void GenerationChanged(kv::LeaseId id);
  void StoreFailed(kv::LeaseId id, const absl::Status& why);
  void DonorSilent(kv::LeaseId id);
  /// Nobody has used it for long: it is drained, then released.
  void GiveBack(kv::LeaseId id);
  StepReads& step_reads() { return step_reads_; }
  /// Own memory is needed: revokes leases until at least `blocks` of it are on their way back, and what the broker
  /// advises beyond that, if its advice comes before the memory does. Repeated needs are one.
  /// `blocks_lent`, as the loop counts them: what came back and it has not heard of is not asked for again.
  void NeedBack(int64_t blocks, int64_t blocks_lent);
  /// More memory would be of use; `waiting_tokens` is the weight among borrowers. Repeated wishes are one.
  void WishForMemory(int64_t bytes, int64_t waiting_tokens);
  void ReportWindow(const Window& window);

  struct Reclaims {
    int64_t count = 0;
    absl::Duration last;  // from the revocation to the memory
  };
  Reclaims reclaims() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return reclaims_;
  }
  /// Leases that this engine gives, for registration.
  std::vector<lease::Lease> Given() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// What it has lent to the engines of each model, until now. Time is counted by whoever asks; a lease that ends just
  /// then may count a moment longer, and less the next time.
  std::map<std::string, lease::Account> Accounts() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return accounts_.At(clock_.Now());
  }

  // From the broker.
  void OnTerms(const LeaseTerms& terms) override;
  void OnLease(const lease::Lease& lease) override;
  void OnLeases(const std::vector<lease::Lease>& leases) override;
  void OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) override;
  void OnScaleUp(absl::StatusOr<std::vector<kv::LeaseId>> leases) override;
  void OnReportRefused(const LeaseEvent& news, const absl::Status& why) override;

  // From the transport.
  void OnBorrowerOpened(kv::LeaseId lease) override;
  void OnRenewal(kv::LeaseId lease) override;
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
  struct Counters {
    explicit Counters(Metrics& metrics);
    prometheus::Counter &granted, &revoked, &fenced, &late, &borrowed, &unread, &lost, &given_back, &scale_up,
        &scale_down;
    prometheus::Histogram& reclaim_seconds;
  };

  void Post(Message message) { mailbox_.Push(std::move(message)); }
  void Run();
  absl::Time NextDeadline() const;
  void Tick(absl::Time now);
  void HandleOpened(kv::LeaseId id, absl::StatusOr<transport::LeaseView> view, absl::Time now);
  void HandleLeaseResponse(const absl::StatusOr<LeaseResponse>& answer, absl::Time now);
  void HandleScaleUp(const std::vector<kv::LeaseId>& leases, absl::Time now);
  void RevokeNeeded(absl::Time now);
  void MaybeRequest(absl::Time now);
  void ReleaseUnread(kv::LeaseId id);
  void ReleaseHeld(absl::Time now);
  void Act(absl::Time now);
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);
  MemoryExchange::Part PartOf(const lease::Extent& extent) const;
  void HandOut(const lease::Lease& lease, const absl::Status& ready);
  void TakeBack(const lease::Donor::TakeBack& a);
  bool AllEndedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return none_held_ || ended_; }

  // Actions.
  void Do(const lease::Donor::ClearExtent& a);
  void Do(const lease::Donor::StopClearing& a) { push_(StopClearingMessage{a.id}); }
  void Do(const lease::Donor::Grant& a);
  void Do(const lease::Donor::SendRenewed& a) { transport_->SendRenewed(a.id); }
  void Do(const lease::Donor::SendRevoke& a);
  void Do(const lease::Donor::Fence& a) { transport_->Fence(a.id); }
  void Do(const lease::Donor::TakeBack& a);
  void Do(const lease::Donor::Say& a);
  void Do(const lease::Borrower::Open& a);
  void Do(const lease::Borrower::Use& a);
  void Do(const lease::Borrower::SendRenewal& a) { transport_->SendRenewal(a.id); }
  void Do(const lease::Borrower::Drain& a);
  void Do(const lease::Borrower::SendRelease& a) { transport_->SendRelease(a.id); }
  void Do(const lease::Borrower::Lose& a);
  void Do(const lease::Borrower::Close& a);

  const Options options_;
  const Clock& clock_;
  Counters counters_;
  StepReads step_reads_;
  transport::Transport* transport_ = nullptr;
  LeaseBroker* broker_ = nullptr;
  std::function<void(LoopMessage)> push_;  // to the loop
  Mailbox<Message> mailbox_;               // peers are few, and what each may say is bounded

  // Owned by the thread.
  lease::Donor donor_;
  lease::Borrower borrower_;
  MemoryExchange exchange_;
  std::map<kv::LeaseId, transport::LeaseView> views_;  // of others' leases, from Open to Close; empty before OnOpened
  std::map<kv::LeaseId, absl::Time> release_held_at_;  // drains that the loop has not heard of by then
  std::vector<LeaseEvent> news_;                       // not yet reported, and
  absl::Time report_by_;                               // the time by which they are
  int64_t needed_blocks_ = 0;  // that the broker was asked about, less those that came back since
  absl::Time advice_deadline_ = absl::InfiniteFuture();
  int64_t wished_bytes_ = 0, waiting_tokens_ = 0;
  bool request_under_way_ = false;
  absl::Time next_request_ = absl::InfinitePast();
  absl::Duration request_interval_;
  int64_t responses_ = 0;  // requests; the next one's key follows from it

  mutable absl::Mutex mutex_;
  std::vector<lease::Lease> given_ ABSL_GUARDED_BY(mutex_);
  lease::Accounts accounts_ ABSL_GUARDED_BY(mutex_);
  bool none_held_ ABSL_GUARDED_BY(mutex_) = true;  // neither given nor taken
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Reclaims reclaims_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::coordinator
