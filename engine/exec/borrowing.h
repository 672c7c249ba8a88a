// SPDX-License-Identifier: Apache-2.0
// The step loop's side of borrowing: what lies in which lease, copies under way, what a revocation or a loss does to the
// sequences.
//
//   borrowing.Do(message);                    // from the coordinator, between steps
//   borrowing.FinishFetches();
//   StepPlan plan = scheduler.Plan();
//   borrowing.Advance(waiting_tokens);        // starts copies, asks to lease
//   borrowing.RegionOf(place.region).view ... // the step
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/device_address.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/own_memory.h"
#include "engine/exec/urgency.h"
#include "engine/kv/tiers.h"
#include "engine/lease/departure.h"
#include "engine/sched/scheduler.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A lease that blocks may lie in.
struct LeasedRegion {
  kv::LeaseId lease;
  kv::RegionId region;
  std::string donor;
  transport::LeaseView view;
  lease::Departure departure;
  absl::Time last_use;           // at the latest look (GiveBackIdle) that saw one
  bool has_more_to_move = true;  // false: what had somewhere to go has gone, or goes
  int64_t resets = 0;            // of sequences, for what it took along
  int64_t told_heat = -1;        // to its donor; negative: nothing yet
};

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
  Borrowing(const Options& options, const Dependencies& parts) : options_(options), parts_(parts) {}

  void Do(const coordinator::UseMessage& message);
  void Do(const coordinator::DrainMessage& message);
  void Do(const coordinator::LoseMessage& message);
  void Do(const coordinator::StoredMessage& message);
  void Do(const coordinator::LendableMessage& message);
  /// A lease is given back in which for so long, and for kLeastIdle at least, no block was used and to which none came.
  void SetKeepIdle(absl::Duration keep);
  static constexpr absl::Duration kLeastIdle = absl::Minutes(1);
  /// After each message, and before each plan (not behind it: sequences may be reset). Blocks in use that leave a region
  /// go on leaving, or their readers are reset; a region goes when nobody uses it and its last copy has ended, and the
  /// lease half hears that nothing reads it any more.
  void FinishRegions();
  /// Blocks are on their way out of a lease that is wanted back soon, or about to be: a step now would read them there, or
  /// outlast the revocation. It takes milliseconds, less than to compute them again.
  bool saves_blocks() const;

  /// True: donors that accept no stores were given up just now, and their leases are to be drained before anything else.
  bool LeaveSilentDonors();

  /// What a step costs that is cut short for a lease that it does not read.
  struct Stake {
    int64_t tokens = 0;               // of prompts, that could be computed in its time
    bool leaves_out_readers = false;  // who reads leases waits for its turn, and would lose more than a step
  };
  /// Around each step, which reads these leases. False: there is a drain to be handled first.
  bool BeginReads(std::span<const kv::LeaseId> leases, const Stake& stake);
  /// Leases that the step does not read and that are worth more than it: for what sequences have there that it leaves out,
  /// or is worth saving (kv::Tiers::WorthSaving) and still can be. One out of which a copy is under way is among them,
  /// too: until the step's end nobody hears that the copy has ended, so it could not be given back before.
  std::vector<kv::LeaseId> WorthMoreThanStep() const;
  /// What was given back meanwhile, since the step did not read it, is gone.
  void EndReads();

  /// Before each plan, and each message: blocks that came home while the last step ran are there.
  void FinishFetches();
  /// After each plan, and whenever a message was handled: what else cache and scheduler wish for is set going.
  /// `waiting_tokens`: of requests that do not run yet.
  void Advance(int64_t waiting_tokens);
  /// When Advance has something to do without a message.
  absl::Time NextWakeup() const;

  const LeasedRegion& RegionOf(kv::RegionId region) const { return regions_.at(region); }
  bool leases_are_mapped() const { return parts_.transport->maps(); }
  /// Whether what lies in this lease is streamed, where anything is.
  bool Streams(const transport::LeaseView& view) const { return options_.streams_all || view.slow_link; }
  /// Leased blocks that are to be streamed.
  int64_t streamed_blocks() const;
  /// Own blocks that hold the slots (eq. 4) of so many leased ones: at most half of the arena. Blocks beyond are read
  /// in place.
  int64_t StreamBlocks(int64_t leased_blocks) const;
  /// Why others do not lend what was wanted, as the broker said last; or "".
  const std::string& shortage() const { return shortage_; }
  /// A step found the memory of these leases changed: the sequences that touch them are reset.
  void NoteLost(const std::vector<kv::LeaseId>& leases);

 private:
  struct Store {
    kv::Move move;
    absl::Time waits_since;  // for its donor: its last word, if that was later than the store
  };
  struct Fetch {
    transport::Ticket load;
    std::vector<kv::Move> moves;  // to the own arena
  };

  LeasedRegion* Find(kv::LeaseId lease);
  // Where the bytes of a place are. Those of a lease must not be written: a block there is full and committed.
  backend::DeviceAddress Address(kv::Place place) const;
  void StartMoves();
  void Start(const std::vector<kv::Move>& moves);
  void RestartStoreTimeouts(const std::string& donor);
  void EmptyThoseThatCan();
  void StartDraining(LeasedRegion& region);
  bool MayStore() const { return static_cast<int64_t>(stores_.size()) < kMaxStores; }
  void Drain(LeasedRegion& region);
  void GoOnDraining(LeasedRegion& region);
  bool StoresFlow() const;
  bool MaySaveMore() const;
  bool SavesIdle(const LeasedRegion& region) const;
  absl::Time MovesUntil(const LeasedRegion& region, bool saves_idle) const;
  bool MayMoveMore(const LeasedRegion& region, bool saves_idle) const;
  bool IsSaving(const LeasedRegion& region) const;
  bool IsEmptying(const LeasedRegion& region) const;
  void Forget(LeasedRegion& region);
  void ResetReaders(LeasedRegion& region);
  void AskForMemory(int64_t waiting_tokens);
  void NoteTaken(int64_t blocks);
  int64_t taken_of_late() const;
  void GiveBackIdle();
  void TellHeat();
  void TellHeatOfNext();
  void UpdatePotential();

  static constexpr int64_t kMaxStores = 64;  // under way: enough to keep the transport busy
  const Options options_;
  const Dependencies parts_;
  std::map<kv::RegionId, LeasedRegion> regions_;
  absl::flat_hash_map<kv::LeaseId, kv::RegionId> region_of_;
  std::set<kv::RegionId> departing_;  // those in other phases than in use
  std::map<transport::Ticket, Store> stores_;
  std::vector<Fetch> fetches_;                   // under way
  absl::flat_hash_set<kv::LeaseId> worth_more_;  // than the step under way
  std::vector<kv::LeaseId> worth_more_copied_;   // likewise, but copies read it
  int64_t lendable_blocks_ = 0;
  std::string shortage_;
  int64_t homeless_blocks_ = 0;                         // in leases that wait for room elsewhere, and have none
  absl::Time slice_until_ = absl::InfinitePast();       // of moves for drains that nobody is in a hurry for
  absl::Time idle_moves_until_ = absl::InfinitePast();  // of all drains for one need
  absl::Duration keep_idle_ = absl::InfiniteDuration();
  absl::Time taken_since_ = absl::InfinitePast();
  int64_t taken_blocks_ = 0, taken_before_ = 0;  // by donors: since then, and in the kTakenOfLate before it
  absl::Time next_idle_look_ = absl::InfiniteFuture();
  absl::Time next_heat_look_ = absl::InfinitePast();
  kv::RegionId heat_looked_at_ = kv::kLocalRegion;  // the latest
  int64_t heat_looks_left_ = 0;                     // until what ran, and what came, has been seen
};

}  // namespace swiftcache::engine::exec
