// SPDX-License-Identifier: Apache-2.0
// A coordinator's side of leases that its engine gives: carries out what lease::Donor decides, asks the broker whose
// lease is to go when memory is needed, and tells it what became of each.
//
//   DonorSide side(options, clock, metrics);
//   side.Start(transport, broker, push, post);
//   side.donor().Offered(lease, now);
//   while (side.Act()) {}
//   if (clock.Now() >= side.NextDeadline()) side.Tick(clock.Now());
//   side.Publish(), side.Report(clock.Now());
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "engine/coordinator/coordinator_options.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/coordinator/loop_message.h"
#include "engine/coordinator/memory_exchange.h"
#include "engine/lease/account.h"
#include "engine/lease/donor.h"
#include "engine/lease/lease.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: none, the coordinator's thread owns it, except for Given, Accounts and reclaims, which are safe.
/// Ownership: borrows what it is handed. Errors: none.
class DonorSide {
 public:
  DonorSide(const CoordinatorOptions& options, const Clock& clock, Metrics& metrics);
  /// `push`: Coordinator::Start's; `post`: MemoryExchange::Start's.
  void Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push,
             std::function<void(MemoryExchange::Then)> post);
  /// After the thread has ended.
  void Stop() { exchange_.Stop(); }

  /// For what happens to leases; then Act.
  lease::Donor& donor() { return donor_; }
  const lease::Donor& donor() const { return donor_; }
  /// Coordinator::NeedBack.
  void NeedBack(int64_t blocks, int64_t blocks_lent, absl::Time now);
  /// The broker's advice (lease::Donor::TakeAdvised), which counts as an answer to that question alone. Empty: it has
  /// none.
  void Advised(int64_t question, const std::vector<kv::LeaseId>& leases, absl::Time now);

  /// Does what the donor wants done. False: nothing.
  bool Act();
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;
  /// Whether leases are given, or memory of ended ones is on its way back: what is withheld may never be.
  bool any_held() const { return donor_.any_held() || exchange_.any_returning(); }
  /// For the readers below.
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Tells the broker what is to be told by now. After Publish: a registration between a report and what it tells of
  /// would leave the lease out.
  void Report(absl::Time now);
  /// At the end: whatever has not come back.
  void FenceAll();

  struct Reclaims {
    int64_t count = 0;
    absl::Duration last;  // from the revocation to the memory
  };
  Reclaims reclaims() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return reclaims_;
  }
  std::vector<lease::Lease> Given() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return given_;
  }
  std::map<std::string, lease::Account> Accounts() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return accounts_.At(clock_.Now());
  }

 private:
  struct Counters {
    explicit Counters(Metrics& metrics);
    prometheus::Counter &granted, &revoked, &fenced, &late, &scale_up, &scale_down;
    prometheus::Histogram& reclaim_seconds;
  };

  void RevokeNeeded(absl::Time now);
  MemoryExchange::Part PartOf(const lease::Extent& extent) const;
  void HandOut(const lease::Lease& lease, const absl::Status& ready);
  void TakeBack(const lease::Donor::TakeBack& a);

  // Actions.
  void Do(const lease::Donor::ClearExtent& a) { push_(ClearMessage{a.lease.id, a.lease.extent}); }
  void Do(const lease::Donor::StopGranting& a);
  void Do(const lease::Donor::StopClearing& a) { push_(StopClearingMessage{a.id}); }
  void Do(const lease::Donor::Grant& a);
  void Do(const lease::Donor::SendRenewed& a) { transport_->SendRenewed(a.id); }
  void Do(const lease::Donor::SendRevoke& a);
  void Do(const lease::Donor::Fence& a) { transport_->Fence(a.id); }
  void Do(const lease::Donor::TakeBack& a);
  void Do(const lease::Donor::Say& a);

  const CoordinatorOptions options_;
  const Clock& clock_;
  Counters counters_;
  transport::Transport* transport_ = nullptr;
  LeaseBroker* broker_ = nullptr;
  std::function<void(LoopMessage)> push_;  // to the loop
  lease::Donor donor_;
  MemoryExchange exchange_;
  std::vector<LeaseEvent> news_;  // not yet reported, and
  absl::Time report_by_;          // the time by which they are
  int64_t needed_blocks_ = 0;     // that the broker was asked about, less those that came back since
  int64_t question_ = 0;          // the last one
  absl::Time advice_deadline_ = absl::InfiniteFuture();

  int64_t published_changes_ = 0;  // of accounts

  mutable absl::Mutex mutex_;
  std::vector<lease::Lease> given_ ABSL_GUARDED_BY(mutex_);
  lease::Accounts accounts_ ABSL_GUARDED_BY(mutex_);
  Reclaims reclaims_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::coordinator
