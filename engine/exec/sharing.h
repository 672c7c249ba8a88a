// SPDX-License-Identifier: Apache-2.0
// The step loop's side of leases, in two halves: what is lent of the own memory, and what is borrowed from others.
// Carries out what kv::KvCache and the lease halves decide.
//
//   sharing.Handle(message);            // from the coordinator, between steps
//   sharing.borrowing().FinishFetches();
//   StepPlan plan = scheduler.Plan();
//   sharing.lending().StateNeed(scheduler.missing_blocks());
//   if (sharing.lending().ShouldDefer(plan)) ...              // wait for a message, until NextWakeup
//   sharing.Advance(waiting_tokens, longest_request_tokens);  // clears, scrubs, starts copies, asks to lease
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/borrowing.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/lending.h"
#include "engine/exec/own_memory.h"
#include "engine/exec/urgency.h"
#include "engine/exec/window_tracker.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/scheduler.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none.
class Sharing {
 public:
  struct Options {
    Borrowing::Options borrowing = {};
    bool scrub_on_return = true;
  };
  struct Dependencies {
    OwnMemory* own;
    kv::KvCache* cache;
    sched::Scheduler* scheduler;
    transport::Transport* transport;
    coordinator::LoopEvents* coordinator;
    Urgency* urgency;
    const Clock* clock;
    EngineMetrics* metrics;
  };
  Sharing(const Options& options, const Dependencies& parts);

  /// REQUIRES: behind the last of those that are there, Borrowing::FinishRegions, which this calls once a millisecond.
  void Handle(const coordinator::LoopMessage& message);
  /// After each plan, and whenever a message was handled: each half sets going what there is to do.
  /// `waiting_tokens`: of requests that do not run yet.
  void Advance(int64_t waiting_tokens, int64_t longest_request_tokens);
  /// When Advance has something to do, or a step is deferred no longer, without a message.
  absl::Time NextWakeup() const;

  Lending& lending() { return lending_; }
  Borrowing& borrowing() { return borrowing_; }
  const Borrowing& borrowing() const { return borrowing_; }

 private:
  void Do(const coordinator::TermsMessage& terms);

  const Dependencies parts_;
  Lending lending_;
  Borrowing borrowing_;
  WindowTracker window_;
  absl::Time next_finish_ = absl::InfinitePast();  // of regions, in Handle
};

}  // namespace swiftcache::engine::exec
