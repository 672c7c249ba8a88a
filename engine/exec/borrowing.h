// SPDX-License-Identifier: Apache-2.0
// The step loop's side of borrowing, the face of its parts: the leases that blocks may lie in (LeasedRegions), copies
// under way (LeaseCopies), leases on their way out (Departures), and which are of use (LeaseUse).
//
//   borrowing.Do(message);                    // from the coordinator, between steps
//   borrowing.FinishFetches();
//   StepPlan plan = scheduler.Plan();
//   borrowing.Advance(waiting_tokens);        // starts copies, asks to lease
//   borrowing.RegionOf(place.region).view ... // the step
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/departures.h"
#include "engine/exec/lease_copies.h"
#include "engine/exec/lease_use.h"
#include "engine/exec/leased_regions.h"
#include "engine/exec/limited_wait.h"
#include "engine/exec/own_memory.h"
#include "engine/exec/taken_of_late.h"
#include "engine/exec/urgency.h"
#include "engine/kv/tiers.h"
#include "engine/sched/scheduler.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none: a copy that fails
/// is a block that stays where it was, a lease that is lost is a cache miss.
class Borrowing {
 public:
  struct Options {
    int64_t num_blocks = 0;  // of the own memory
    int64_t block_tokens = 0;
    int64_t streamed_layers = 0;  // of the model, where leased blocks are streamed layer by layer; 0: read in place
    bool streams_all = true;      // false: none but those behind slow links
    absl::Duration revoke_deadline = absl::Milliseconds(50);  // of donors: who leaves more time is in no hurry
  };
  struct Dependencies {
    OwnMemory* own;
    kv::Tiers* cache;
    sched::Scheduler* scheduler;
    transport::Transport* transport;
    coordinator::LoopEvents* coordinator;
    Urgency* urgency;
    const Clock* clock;
  };
  Borrowing(const Options& options, const Dependencies& parts);

  void Do(const coordinator::UseMessage& message);
  void Do(const coordinator::DrainMessage& message);
  void Do(const coordinator::LoseMessage& message);
  void Do(const coordinator::StoredMessage& message);
  void Do(const coordinator::LendableMessage& message);
  /// See LeaseUse.
  void SetKeepIdle(absl::Duration keep) { use_.SetKeepIdle(keep); }
  /// After messages, and before each plan (not behind it): see Departures::Finish. Looks at all leases that leave.
  void FinishRegions();
  /// See Departures.
  bool saves_blocks() const { return departures_.saves_blocks(); }
  /// See LeaseCopies.
  bool LeaveSilentDonors() { return copies_.LeaveSilentDonors(); }

  /// What cutting a step short costs, for a lease that it does not read.
  struct Stake {
    int64_t tokens = 0;               // of prompts, that could be computed in the time that it loses
    bool leaves_out_readers = false;  // who reads leases waits for its turn, and would lose more than a step
  };
  /// Around each step, which reads these leases. False: there is a drain to be handled first.
  bool BeginReads(std::span<const kv::LeaseId> leases, const Stake& stake);
  /// Leases that the step does not read and that are worth more than is at stake: for what sequences have there that it
  /// leaves out, or is worth saving (kv::Tiers::WorthSaving) and still can be. One out of which a copy is under way is
  /// among them, too: until the step's end nobody hears that the copy has ended, so it could not be given back before.
  std::vector<kv::LeaseId> WorthCutting() const;
  /// Sequences that read what the step found `lost` are reset: what it computed of them is never committed. What was
  /// given back meanwhile, since the step did not read it, is gone.
  void EndReads(const std::vector<kv::LeaseId>& lost);

  /// Before each plan, and each message: blocks that came home while the last step ran are there.
  void FinishFetches() { departures_.NoteLost(copies_.FinishFetches()); }
  /// After each plan, and whenever a message was handled: what else cache and scheduler wish for is set going.
  /// `waiting_tokens`: of requests that do not run yet.
  void Advance(int64_t waiting_tokens);
  /// Who waited for memory has gone, and nobody else is there: what the broker has not been asked for yet it is not asked.
  void ForgetNeed() {
    (void)parts_.cache->TakeLeaseWish(/*margin=*/0);
    parts_.coordinator->WishForMemory(0, 0);
  }
  /// When Advance has something to do without a message.
  absl::Time NextWakeup() const;

  const LeasedRegion& RegionOf(kv::RegionId region) const { return regions_.at(region); }
  bool leases_are_mapped() const { return parts_.transport->maps(); }
  /// Whether what lies in this lease is streamed, where anything is.
  bool Streams(const transport::LeaseView& view) const { return options_.streams_all || view.slow_link; }
  /// Leased blocks that are to be streamed.
  int64_t streamed_blocks() const;
  /// Leased blocks that a step may stream, whatever slots there are.
  int64_t most_streamed_blocks() const { return parts_.transport->most_streamed_blocks(options_.streamed_layers); }
  /// Own blocks that hold the slots (eq. 4) of so many leased ones: at most half of the arena. Blocks beyond are read
  /// in place.
  int64_t StreamBlocks(int64_t leased_blocks) const;
  /// How many times the broker said, while requests waited, that nothing is to be had and nothing on its way, or it was
  /// not asked, since one stream may have no more.
  int64_t needs_refused() const { return needs_refused_; }
  /// That is the last that is known, and no lease leaves or was taken back of late, which might come again.
  bool need_is_refused() const {
    return need_is_refused_ && !departures_.any() && taken_.blocks(parts_.clock->Now()) == 0;
  }
  /// Why others do not lend what was wanted, as the broker said last; or "".
  const std::string& shortage() const { return shortage_; }
  /// See LeaseCopies.
  absl::Status CheckInvariants() const { return copies_.CheckInvariants(); }

 private:
  void NoteRefusal();
  bool WishesWait();
  void AskForMemory(int64_t waiting_tokens);
  void UpdatePotential();

  const Options options_;
  const Dependencies parts_;
  LeasedRegions regions_;
  LeaseCopies copies_;
  Departures departures_;
  LeaseUse use_;
  TakenOfLate taken_;
  absl::flat_hash_set<kv::LeaseId> worth_cutting_;  // the step under way
  std::vector<kv::LeaseId> worth_cutting_copied_;   // likewise, but copies read it
  LimitedWait wishes_wait_;                         // the cache's, for moves
  int64_t lendable_blocks_ = 0;
  int64_t needs_refused_ = 0;
  bool need_is_refused_ = false;  // and nothing has come or was offered since
  std::string shortage_;
};

}  // namespace swiftcache::engine::exec
