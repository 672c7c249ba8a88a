// SPDX-License-Identifier: Apache-2.0
// The leases on their way out: what lies there is moved or dropped, and who reads it is reset. What becomes of each is
// lease::Departure's to say; this does it.
//
//   departures.Begin(drain_message);         // from the coordinator, between steps
//   departures.Lose(lose_message.id);
//   Gone gone = departures.Finish();         // after messages, and before each plan
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/lease_copies.h"
#include "engine/exec/leased_regions.h"
#include "engine/exec/own_memory.h"
#include "engine/exec/urgency.h"
#include "engine/kv/tiers.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none: a lease that is
/// lost is a cache miss. Units: blocks.
class Departures {
 public:
  struct Options {
    absl::Duration revoke_deadline;  // of donors: who leaves more time is in no hurry
    bool leases_are_mapped = true;   // what lies in one can go to another
  };
  struct Dependencies {
    LeasedRegions* regions;
    LeaseCopies* copies;
    OwnMemory* own;
    kv::Tiers* cache;
    sched::Scheduler* scheduler;
    coordinator::LoopEvents* coordinator;
    Urgency* urgency;
    const Clock* clock;
  };
  Departures(const Options& options, const Dependencies& parts) : options_(options), parts_(parts) {}

  void Begin(const coordinator::DrainMessage& message);
  /// Its memory is another's, or its donor is gone.
  void Lose(kv::LeaseId lease);
  /// A step or a copy found the memory of these leases changed: the sequences that touch them are reset.
  void NoteLost(const std::vector<kv::LeaseId>& leases);
  /// Nobody has memory to lend: nothing waits for room.
  void NoRoom();

  /// Blocks of leases that are out of use.
  struct Gone {
    int64_t given_back = 0, taken = 0;  // unasked, by their donors
    int64_t blocks() const { return given_back + taken; }
  };
  /// Not behind a plan: sequences may be reset. Blocks in use that leave a region go on leaving, or their readers are
  /// reset; a region goes when nobody uses it and its last copy has ended, and the coordinator hears that nothing reads it
  /// any more.
  Gone Finish();
  /// Blocks are on their way out of a lease that is wanted back soon, or about to be: a step now would read them there, or
  /// outlast the revocation. It takes milliseconds, less than to compute them again.
  bool saves_blocks() const;
  /// A lease is on its way out.
  bool any() const { return !departing_.empty(); }
  /// Of leases that wait for room elsewhere, what has none, with the quarter more that each donor's blocks wait for.
  int64_t homeless_blocks() const { return homeless_blocks_; }
  /// When Finish has something to do without a message.
  absl::Time next_change() const;

 private:
  // Of its moves of idle blocks that nobody is in a hurry for, and at least as long until the next: a step comes between,
  // however many messages there are.
  static constexpr absl::Duration kIdleSlice = absl::Milliseconds(5);
  absl::Time NextSlice() const { return slice_until_ + kIdleSlice; }

  void EmptyThoseThatCan();
  void Drain(LeasedRegion& region);
  void GoOnDraining(LeasedRegion& region);
  bool MaySaveMore() const;
  bool SavesIdle(const LeasedRegion& region) const;
  absl::Time MovesUntil(const LeasedRegion& region, bool saves_idle) const;
  bool MayMoveMore(const LeasedRegion& region, bool saves_idle) const;
  bool IsSaving(const LeasedRegion& region) const;
  bool IsEmptying(const LeasedRegion& region) const;
  bool IsOver(const LeasedRegion& region) const;
  void Drop(const LeasedRegion& region);
  void ResetReaders(LeasedRegion& region);

  const Options options_;
  const Dependencies parts_;
  std::set<kv::RegionId> departing_;  // those in other phases than in use
  int64_t homeless_blocks_ = 0;
  absl::Time slice_until_ = absl::InfinitePast();
  absl::Time idle_moves_until_ = absl::InfinitePast();  // of all drains for one need
};

}  // namespace swiftcache::engine::exec
