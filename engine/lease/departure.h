// SPDX-License-Identifier: Apache-2.0
// How blocks leave a lease that its borrower is to give back: what they wait for, and until when. The loop that has them
// is told by the Borrower of a drain or a loss; this says what becomes of the lease there, and the loop does it.
//
//   departure.Drain(until, now, {.revoke_deadline = absl::Milliseconds(50), .has_elsewhere = true});
//   if (departure.phase() == Departure::Phase::kWaiting) ... // ask others for memory; then departure.Empty()
//   if (departure.phase() == Departure::Phase::kSaving) ...  // move blocks in use, until departure.save_until()
//
// What each event does in each phase. A dash: nothing.
//
//   event              | in use      | waiting            | emptying      | saving     | lost
//   -------------------+-------------+--------------------+---------------+------------+------
//   GiveBack           | noted       | -                  | -             | -          | -
//   Drain, unhurried   | -> waiting  | waits anew         | as in a hurry | as below   | -
//   Drain, in a hurry  | -> saving   | -> saving          | -> saving;    | the earlier| -
//                      |             |                    | the earlier   | save_until |
//                      |             |                    | save_until    |            |
//   NoRoom             | -           | waits no longer    | -             | -          | -
//   Empty              | -           | -> emptying        | -             | -          | -
//   Emptied            | -           | -                  | -> saving     | -          | -
//   Lose               | -> lost     | -> lost            | -> lost       | -> lost    | -
//
// Waiting: nobody is in a hurry; blocks are used as ever, until there is room for them in leases of other donors, or
// until leaves_at. Emptying: all blocks that have somewhere to go move there, idle ones too. Saving: those in use do,
// then idle ones that are worth saving (kv::Tiers); of other idle ones what begins to in next to no time. What is still
// in use at save_until is given up, with the sequences that read it. Lost: nothing can be saved.
#pragma once

#include "absl/time/time.h"

namespace swiftcache::engine::lease {

/// Thread-safety: none. Ownership: a value. Errors: none. Time: the borrower's own clock.
class Departure {
 public:
  enum class Phase { kInUse, kWaiting, kEmptying, kSaving, kLost };
  struct Terms {
    absl::Duration revoke_deadline;  // what a donor in need leaves
    bool has_elsewhere = true;       // what lies in a lease can go to another
  };
  /// Of the time that is left when the loop gets to a drain copies may take this part. What no step reads the coordinator
  /// gives back as it is, if the loop has not got to it in this part of the whole time (coordinator::BorrowerSide).
  static constexpr int kDrainDivisor = 2;
  /// A drain with at least so much time, and so many deadlines, is in no hurry: its donor ends in order, say.
  static constexpr absl::Duration kUnhurried = absl::Seconds(1);
  static constexpr int kUnhurriedDeadlines = 2;
  /// It waits for room for this part of its time, and no longer than that.
  static constexpr int kRoomDivisor = 4;
  static constexpr absl::Duration kRoomPatience = absl::Seconds(2);

  /// The borrower itself has no more use for the lease: what lies there is not worth to wait for room, whatever time
  /// its drain has. Before that drain.
  void GiveBack() { given_back_ |= phase_ == Phase::kInUse; }
  void Drain(absl::Time until, absl::Time now, const Terms& terms);
  /// Nobody has memory to lend.
  void NoRoom();
  void Empty();
  /// Nothing has somewhere to go any more.
  void Emptied();
  void Lose() { phase_ = Phase::kLost; }

  Phase phase() const { return phase_; }
  bool in_use() const { return phase_ == Phase::kInUse; }
  bool waiting() const { return phase_ == Phase::kWaiting; }
  bool emptying() const { return phase_ == Phase::kEmptying; }
  /// Blocks move out.
  bool draining() const { return emptying() || phase_ == Phase::kSaving; }
  bool lost() const { return phase_ == Phase::kLost; }
  bool given_back() const { return given_back_; }
  /// Waiting: until then. Infinite future in other phases.
  absl::Time leaves_at() const { return waiting() ? leaves_at_ : absl::InfiniteFuture(); }
  /// Infinite future before any Drain.
  absl::Time save_until() const { return save_until_; }
  /// What is idle and worth it is saved until then, so that all leases of one need, whose time is the same, are done with
  /// half of a deadline to spare. Infinite past before any Drain.
  absl::Time save_idle_until() const { return save_idle_until_; }

 private:
  Phase phase_ = Phase::kInUse;
  bool given_back_ = false;
  absl::Time leaves_at_ = absl::InfiniteFuture();
  absl::Time save_until_ = absl::InfiniteFuture();
  absl::Time save_idle_until_ = absl::InfinitePast();
};

}  // namespace swiftcache::engine::lease
