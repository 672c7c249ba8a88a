// SPDX-License-Identifier: Apache-2.0
// Who waits in vain for memory that others lend: what they do not lend, or lent and took back, does not hold up a client
// for ever.
//
//   for (auto [request, continuations] : starvation.Look(refusals, /*are_final=*/true)) ...   // end them
//   ... if (clock.Now() >= starvation.next_look()) ...          // look again, though nothing happened
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/exec/live_requests.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// A continuation starves while its request is parked or its sequence Starves, and recovers as long afterwards as it
/// starved, so that memory which comes and goes does not start its patience anew each time. Who has starved for
/// `patience` ends; so does who IsExhausted. With that a request ends within `patience` and twice the time that it does
/// not starve, for which the scheduler has a bound: of that time T it starved at most patience + (T - starved).
///
/// Thread-safety: none; the step loop owns it. Ownership: borrows what is handed in. Errors: none. Cost: while a request
/// is too long for own memory, or starved, a look at each that lives; else nothing.
class Starvation {
 public:
  Starvation(absl::Duration patience, const Clock* clock, const sched::Scheduler* scheduler, const LiveRequests* live)
      : patience_(patience), clock_(*clock), scheduler_(*scheduler), live_(*live) {}

  /// Those of a request whose patience has ended.
  struct Ended {
    LiveRequest* request;
    std::vector<Continuation*> continuations = {};
  };
  /// Before each plan, and at next_look. `refusals`: how many times so far those who wait were told that there is
  /// nothing for them. `are_final`: nothing is on its way either; then a continuation without max_tokens that has a
  /// token and does not fit ends, if it was refused since it began to starve, without waiting for `patience`.
  std::vector<Ended> Look(int64_t refusals, bool are_final);
  /// At the last look, or had starved and not made up for it.
  bool any_starves() const { return any_starved_; }
  absl::Time next_look() const { return next_look_; }

 private:
  bool Note(Continuation& continuation, int64_t refusals, absl::Duration since_last, absl::Time now);

  const absl::Duration patience_;
  const Clock& clock_;
  const sched::Scheduler& scheduler_;
  const LiveRequests& live_;
  absl::Time last_look_ = absl::InfiniteFuture();
  absl::Time next_look_ = absl::InfiniteFuture();
  bool any_starved_ = false;
};

}  // namespace swiftcache::engine::exec
