// SPDX-License-Identifier: Apache-2.0
// The step loop's side of lending: clears what is to be lent, a little between two steps, and asks back what is needed.
//
//   lending.Do(message);                     // from the coordinator, between steps
//   StepPlan plan = scheduler.Plan();
//   lending.StateNeed(scheduler.missing_blocks());
//   if (lending.ShouldDefer(plan)) ...       // wait for a message, until NextWakeup
//   lending.Advance();
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/fence.h"
#include "engine/backend/kv_memory.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/own_memory.h"
#include "engine/kv/lendable_blocks.h"
#include "engine/lease/lease.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none; what cannot be
/// lent is declined.
class Lending {
 public:
  struct Dependencies {
    OwnMemory* own;
    kv::LendableBlocks* cache;
    coordinator::LoopEvents* coordinator;
    const Clock* clock;
    EngineMetrics* metrics;
  };
  /// `scrub`: memory changes hands zeroed.
  Lending(const Dependencies& parts, bool scrub) : parts_(parts), scrub_(scrub) {}

  void Do(const coordinator::ClearMessage& message);
  void Do(const coordinator::StopClearingMessage& message);
  void Do(const coordinator::WithheldMessage& message);
  void Do(const coordinator::TakeBackMessage& message);

  /// After each plan: what is lent and was needed is asked back. Once, and whole: `missing_blocks`, that those that run
  /// will take, come along with what the plan lacked.
  void StateNeed(int64_t missing_blocks);
  static constexpr absl::Duration kReclaimPatience = absl::Milliseconds(5);
  /// True for at most kReclaimPatience after plans began to lack room, while the plan samples no token: the memory
  /// usually comes within that time, and one large step of prefill is cheaper than two. (On CPUs a step would also
  /// compete with the borrower that is to give the memory back.)
  bool ShouldDefer(const sched::StepPlan& plan) const;
  /// Nobody runs or waits: nothing is needed.
  void ForgetNeed();
  /// After each plan, and whenever a message was handled: scrubs what the next step writes to, and clears some of what
  /// is to be lent.
  void Advance();
  /// Called where no step follows: what Advance cleared is reported to be.
  void AwaitClears();
  /// When there is something to do, or a step is deferred no longer, without a message.
  absl::Time NextWakeup() const;

 private:
  struct Clearing {
    kv::LeaseId id;
    lease::Extent extent;
    std::vector<backend::ByteRange> left;  // to be zeroed, the next one last
    backend::Fence done;                   // of what was
    bool cleared() const { return left.empty() && done.Passed(); }
  };
  // Of what is lent. Each plan lacks the room of its next step, a part of that: it ends when all of it is back.
  struct Need {
    absl::Time since;
    int64_t blocks = 0;  // as stated first
    int64_t returned_blocks = 0;
  };

  void Scrub();
  void ClearSome();
  int64_t BytesIn(absl::Duration time) const;
  int64_t BytesThisRound() const;
  bool ZeroSome();
  std::vector<backend::ByteRange> ToZero(const lease::Extent& extent) const;
  bool BeginClearing(bool new_round);
  void MoveAside(const std::vector<kv::Move>& moves);
  void FinishClears();
  void StopClearing(const Clearing& clearing);
  int64_t StopAllClearing();
  void EndNeed();
  absl::Time PatienceEnds() const { return lacking_since_ + kReclaimPatience; }

  const Dependencies parts_;
  const bool scrub_;
  std::deque<coordinator::ClearMessage> clears_;           // extents to be lent, in the order of their offers
  std::deque<Clearing> clearing_;                          // out of use, to be lent, and not reported yet; likewise
  absl::Time clears_wait_since_ = absl::InfiniteFuture();  // for the next round; infinite: none waited for it
  int64_t bytes_left_ = 0;                                 // to be zeroed in this round; below 0: of the next one's
  bool asks_again_ = false;                                // memory came free since the last plan, which had none
  absl::Time lacking_since_ = absl::InfinitePast();        // room, plan after plan; infinite: the last had it
  std::optional<Need> need_;
};

}  // namespace swiftcache::engine::exec
