// SPDX-License-Identifier: Apache-2.0
// The step loop's side of leases: what lies in which lease, copies under way, what a revocation or a loss does to the
// sequences. Carries out what kv::KvCache and the lease halves decide.
//
//   sharing.Handle(message);            // from the coordinator, between steps
//   sharing.FinishFetch();
//   StepPlan plan = scheduler.Plan();
//   sharing.AskBack();
//   sharing.Advance(waiting_tokens, longest_request_tokens);  // scrubs, starts copies, asks to lease
//   if (sharing.ShouldDefer(plan)) ...                        // wait for a message, until NextDuty
//   for (...) address = sharing.Address(place);
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/fence.h"
#include "engine/backend/kv_memory.h"
#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/loop_message.h"
#include "engine/coordinator/window_tracker.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/urgency.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/scheduler.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A lease that blocks may lie in.
struct LeasedRegion {
  kv::LeaseId lease;
  kv::RegionId region;
  std::string donor;
  transport::LeaseView view;
  enum class Phase { kInUse, kDraining, kLost } phase = Phase::kInUse;
  absl::Time drain_until = absl::InfiniteFuture();
};

/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none: a copy that fails
/// is a block that stays where it was, a lease that is lost is a cache miss.
class Sharing {
 public:
  struct Options {
    int64_t num_blocks = 0, block_bytes = 0;  // of the own memory
    bool scrub_on_return = true;
    int64_t clear_bytes_at_once = 1;  // and at least a block
    int64_t streamed_layers = 0;      // of the model, where leased blocks are streamed layer by layer; 0: read in place
    absl::Duration scale_down_window = absl::Seconds(60);
    absl::Duration idle_move_budget = absl::Microseconds(500);  // for blocks that nobody runs on; of drains in a row
  };
  struct Parts {
    backend::KvMemory* memory;
    kv::KvCache* cache;
    sched::Scheduler* scheduler;
    transport::Transport* transport;
    coordinator::Coordinator* coordinator;
    Urgency* urgency;
    const Clock* clock;
    EngineMetrics* metrics;
  };
  Sharing(const Options& options, const Parts& parts);

  void Handle(const coordinator::LoopMessage& message);
  /// Before each plan: blocks that came home while the last step ran are there.
  void FinishFetch();
  /// After each plan: what is lent and was needed is asked back.
  void AskBack();
  static constexpr absl::Duration kReclaimPatience = absl::Milliseconds(5);
  /// True for at most kReclaimPatience after a need arose, while the plan samples no token: the memory usually comes
  /// within that time, and one large step of prefill is cheaper than two. (On CPUs a step would also compete with the
  /// borrower that is to give the memory back.)
  bool ShouldDefer(const sched::StepPlan& plan) const;
  /// After each plan, and whenever a message was handled: what else cache and scheduler wish for is set going, and
  /// memory that others asked for is cleared.
  /// `waiting_tokens`: of requests that do not run yet.
  void Advance(int64_t waiting_tokens, int64_t longest_request_tokens);
  /// When Advance has something to do, or a step is deferred no longer, without a message.
  absl::Time NextDuty() const;

  /// Called where no step follows: what Advance cleared is reported to be.
  void AwaitClears();

  const LeasedRegion& RegionOf(kv::RegionId region) const { return regions_.at(region); }
  bool leases_are_mapped() const { return parts_.transport->maps(); }
  /// Own blocks that hold the slots (eq. 4) of so many leased ones: at most half of the arena. Blocks beyond are read
  /// in place.
  int64_t StreamBlocks(int64_t leased_blocks) const;
  /// Why others do not lend what was wanted, as the broker said last; or "".
  const std::string& shortage() const { return shortage_; }
  /// A step found the memory of these leases changed: the sequences that touch them are reset.
  void NoteLost(const std::vector<kv::LeaseId>& leases);

 private:
  void Do(const coordinator::ClearMessage& message);
  void Do(const coordinator::StopClearingMessage& message);
  void Do(const coordinator::TakeBackMessage& message);
  void Do(const coordinator::UseMessage& message);
  void Do(const coordinator::DrainMessage& message);
  void Do(const coordinator::LoseMessage& message);
  void Do(const coordinator::StoredMessage& message);
  void Do(const coordinator::LendableMessage& message);

  void ClearSome();
  bool ZeroSome(int64_t& bytes);
  bool BeginClearing(int64_t& bytes);
  void FinishClears();
  int64_t StopAllClearing();
  // Where the bytes of a place are. Those of a lease must not be written: a block there is full and committed.
  backend::DeviceAddress Address(kv::Place place) const;
  LeasedRegion* Find(kv::LeaseId lease);
  void Scrub();
  void StartMoves();
  void Start(const std::vector<kv::Move>& moves);
  void NoteWordOf(const std::string& donor);
  void LeaveSilentDonors();
  void Drain(LeasedRegion& region);
  void ResetReaders(const LeasedRegion& region);
  void FinishRegions();
  void AskForMemory(int64_t waiting_tokens);
  void UpdatePotential();

  const Options options_;
  const Parts parts_;
  std::deque<coordinator::ClearMessage> clears_;  // extents to be lent, in the order of their offers
  struct Clearing {
    kv::LeaseId id;
    lease::Extent extent;
    backend::ByteRange left;  // to be zeroed
    backend::Fence done;      // of what was
    bool cleared() const { return left.bytes == 0 && done.Passed(); }
  };
  void StopClearing(const Clearing& clearing);
  absl::Time clears_wait_since_ = absl::InfiniteFuture();  // for the next round; infinite: none waited for it
  bool asks_again_ = false;                                // memory came free since the last plan, which had none
  std::deque<Clearing> clearing_;  // out of use, to be lent, and not reported yet; in the order of their offers
  backend::Fence last_change_;     // that was made to own KV memory, but by steps, which are waited for
  std::map<kv::RegionId, LeasedRegion> regions_;
  struct Store {
    kv::Move move;
    absl::Time waits_since;  // for its donor: the last word of his, if that was later than the store
  };
  std::map<transport::Ticket, Store> stores_;
  struct Fetch {
    transport::Ticket load;
    std::vector<kv::Move> moves;  // to the own arena
  };
  std::optional<Fetch> fetch_;  // at most one at a time
  struct Need {
    absl::Time since;
    int64_t free_blocks = 0;  // what would do
  };
  absl::Time PatienceEnds() const { return need_ ? need_->since + kReclaimPatience : absl::InfinitePast(); }
  std::optional<Need> need_;  // of what is lent
  coordinator::WindowTracker window_;
  int64_t lendable_blocks_ = 0;
  std::string shortage_;
  absl::Time idle_moves_until_ = absl::InfinitePast();  // of all drains for one need
};

}  // namespace swiftcache::engine::exec
