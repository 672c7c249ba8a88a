// SPDX-License-Identifier: Apache-2.0
// A coordinator's side of leases that its engine takes: carries out what lease::Borrower decides, and asks the broker
// for more of them.
//
//   BorrowerSide side(options, clock, metrics);
//   side.Start(transport, broker, push);
//   side.borrower().Granted(lease, now);
//   while (side.Act()) {}
//   if (clock.Now() >= side.NextDeadline()) side.Tick(clock.Now());
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "engine/coordinator/coordinator_options.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/coordinator/loop_message.h"
#include "engine/coordinator/step_reads.h"
#include "engine/lease/borrower.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: none, the coordinator's thread owns it, except for step_reads. Ownership: borrows what it is handed.
/// Errors: none.
class BorrowerSide {
 public:
  BorrowerSide(const CoordinatorOptions& options, const Clock& clock, Metrics& metrics);
  /// `push`: Coordinator::Start's.
  void Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push);

  /// For what happens to leases; then Act.
  lease::Borrower& borrower() { return borrower_; }
  const lease::Borrower& borrower() const { return borrower_; }
  StepReads& step_reads() { return step_reads_; }
  void Opened(kv::LeaseId id, const absl::StatusOr<transport::LeaseView>& view, absl::Time now);
  /// Nobody has used it for long.
  void GiveBackUnused(kv::LeaseId id, absl::Time now);
  /// The engine ends: asks for nothing more, and gives back everything.
  void GiveBackAll(absl::Time now);
  /// The broker is another, or has not heard of this engine for a while.
  void Registered() { AskSoon(); }
  /// Coordinator::WishForMemory.
  void Wish(int64_t bytes, int64_t waiting_tokens, absl::Time now);
  /// The broker's answer to that.
  void Answered(const absl::StatusOr<LeaseResponse>& answer, absl::Time now);

  /// Does what the borrower wants done. False: nothing.
  bool Act();
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;
  bool any_held() const { return borrower_.any_held(); }

 private:
  struct Counters {
    explicit Counters(Metrics& metrics);
    prometheus::Counter &borrowed, &unread, &lost, &given_back;
  };

  void AskSoon() { request_interval_ = options_.min_request_interval; }
  absl::Time NextRequest() const;
  void MaybeRequest(absl::Time now);
  void ReleaseUnread(kv::LeaseId id);
  void ReleaseHeld(absl::Time now);

  // Actions.
  void Do(const lease::Borrower::Open& a);
  void Do(const lease::Borrower::Use& a);
  void Do(const lease::Borrower::SendRenewal& a) { transport_->SendRenewal(a.id, a.heat); }
  void Do(const lease::Borrower::Drain& a);
  void Do(const lease::Borrower::SendRelease& a) { transport_->SendRelease(a.id); }
  void Do(const lease::Borrower::Lose& a);
  void Do(const lease::Borrower::Close& a);

  const CoordinatorOptions options_;
  const Clock& clock_;
  Counters counters_;
  StepReads step_reads_;
  transport::Transport* transport_ = nullptr;
  LeaseBroker* broker_ = nullptr;
  std::function<void(LoopMessage)> push_;  // to the loop
  lease::Borrower borrower_;
  std::map<kv::LeaseId, transport::LeaseView> views_;  // of others' leases, from Open to Close; empty before Opened
  std::map<kv::LeaseId, absl::Time> release_held_at_;  // drains that the loop has not heard of by then
  int64_t wished_bytes_ = 0, waiting_tokens_ = 0;
  bool request_under_way_ = false, asked_for_waiting_ = false;
  absl::Time last_request_ = absl::InfinitePast();       // or its answer
  absl::Duration request_interval_;                      // while nothing waits
  absl::Time opening_failed_at_ = absl::InfinitePast();  // the last lease's; InfinitePast: it could be opened
  absl::Duration fruitless_interval_;                    // from then to a request; doubles if one failed since the last
  bool failed_since_request_ = false;                    // whether an opening failed since the last request
  int64_t responses_ = 0;                                // requests; the next one's key follows from it
};

}  // namespace swiftcache::engine::coordinator
