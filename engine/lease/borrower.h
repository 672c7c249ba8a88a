// SPDX-License-Identifier: Apache-2.0
// The borrower's side of all leases that an engine takes: decides when to open, renew, drain and give up each. It is
// told of events and returns actions; kv, transport and broker client carry them out.
//
//   Borrower borrower({.instance_id = instance, .block_bytes = 4096});
//   borrower.Granted(lease, clock.Now());
//   for (Borrower::Action& action : borrower.TakeActions()) Do(action);  // Open; then borrower.Opened(id, true, now)
//   ... if (clock.Now() >= borrower.NextDeadline()) borrower.Tick(clock.Now());
//
// What each event does in each state. A dash: the event is ignored and counted, as is one for an unknown or ended
// lease. The time `until` of a drain is checked by Tick.
//
//   input             | opening            | active              | draining            | losing
//   ------------------+--------------------+---------------------+---------------------+-------------
//   Granted (same)    | -                  | -                   | -                   | -
//   Opened ok         | Use -> active      | -                   | -                   | -
//     after ttl/3     | then SendRenewal   |                     |                     |
//     if wanted back  | SendRelease, Close;|                     |                     |
//                     | ends               |                     |                     |
//   Opened not ok     | Close; ends        | -                   | -                   | -
//   Renewed           | -                  | counts as an answer | - (too late)        | -
//   Revoked, GiveBack,| wanted back, for a | Drain -> draining   | Drain, if `until`   | -
//     GiveBackAll     | second at the most |                     | is earlier; else -  |
//   Drained           | -                  | -                   | SendRelease, Close; | Close; ends
//                     |                    |                     | ends                |
//   Dropped           | -                  | -                   | -                   | Close; ends
//   Unread            | -                  | -                   | -> losing           | -
//   DonorGone         | Close; ends        | Lose -> losing      | Lose -> losing      | -
//   GenerationChanged,| -                  | Lose -> losing      | Lose -> losing      | -
//   StoreFailed       |                    |                     |                     |
//   DonorSilent       | -                  | Drain; as all of    | likewise, if        | -
//                     |                    | that donor          | `until` is earlier  |
//   NoteHeat          | -                  | SendRenewal         | -                   | -
//   Tick              | after ttl: Close;  | each ttl/3 a        | at `until`: Lose    | -
//                     | ends               | SendRenewal; ttl    | -> losing           |
//                     |                    | without an answer:  |                     |
//                     |                    | Drain               |                     |
//
// Lose may cross a Drained that is under way: that Drained ends the lease as Dropped does, and the Dropped behind it is
// ignored. A grant whose bytes do not hold its blocks is ignored; one that comes after GiveBackAll is wanted back, so
// that its donor hears at once that nobody uses it. The broker tells a borrower what it may open, and nothing else; it
// is told nothing. A lease ends by its channel: because its donor says so there, or is not there any more, or its
// generation changed; never because of the broker. A loss costs cache misses, nothing else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/recent_ids.h"
#include "engine/lease/lease.h"

namespace swiftcache::engine::lease {

/// Every lease that is opened is closed exactly once, and never while kv may use it: after Use there is no Close before
/// Drained or Dropped. A release is sent only after Drained, before Unread, or without Use. Thread-safety: none.
/// Ownership: a value. Errors: none: foreign, late and repeated messages are ignored and counted. Time: never goes
/// back; the borrower's own clock.
class Borrower {
 public:
  struct Options {
    std::string instance_id;                        // of this process: leases of other instances are ignored
    int64_t block_bytes = 0;                        // of this engine; > 0
    absl::Duration ttl = absl::Seconds(10);         // without a response of the donor; a third of it between renewals
    absl::Duration drain = absl::Milliseconds(50);  // for drains that the donor does not bound
  };

  // What is to be done, in this order.
  struct Open {  // transport; then Opened
    Lease lease;
  };
  struct Use {  // kv: the region may be used
    Lease lease;
  };
  struct SendRenewal {
    kv::LeaseId id;
    int64_t heat = 0;  // NoteHeat's
  };
  struct Drain {  // kv: no new use; move or drop what lies there; then Drained. At `until` it may be lost.
    kv::LeaseId id;
    absl::Time until;
  };
  struct SendRelease {
    kv::LeaseId id;
  };
  struct Lose {  // kv: its blocks are gone; forget them, end reading; then Dropped. Also after a Drain.
    kv::LeaseId id;
    std::string why;  // for the log
  };
  struct Close {  // transport: unmap, forget; also where the opening has not been answered
    kv::LeaseId id;
  };
  using Action = std::variant<Open, Use, SendRenewal, Drain, SendRelease, Lose, Close>;

  explicit Borrower(const Options& options) : options_(options) {}

  /// A lease goes on with the shortest that was said in its time, from its next renewal on: its donor goes by another, if
  /// it has not heard of this one.
  void SetTtl(absl::Duration ttl, absl::Time now);

  // From the broker's Watch.
  /// A lease as the broker has it now. GRANTED to this instance: as Granted; else ignored.
  void OnLeaseUpdate(const Lease& lease, absl::Time now);
  void Granted(const Lease& lease, absl::Time now);
  // From the transport.
  void Opened(kv::LeaseId id, bool ok, absl::Time now);
  void Renewed(kv::LeaseId id, absl::Time now);
  void Revoked(kv::LeaseId id, absl::Duration time_left, absl::Time now);
  void DonorGone(kv::LeaseId id, absl::Time now);
  // From kv and its loop.
  /// After a Drain: nothing of the region is used any more, and nothing will be.
  void Drained(kv::LeaseId id, absl::Time now);
  /// Instead of that: it was released at once, since nothing reads it; what lies there is lost. Then Dropped.
  void Unread(kv::LeaseId id, absl::Time now);
  /// After a Lose: likewise.
  void Dropped(kv::LeaseId id, absl::Time now);
  /// A reader saw that the memory has changed hands.
  void GenerationChanged(kv::LeaseId id, absl::Time now);
  /// A store into the lease was not done, because of the donor or because it is gone.
  void StoreFailed(kv::LeaseId id, const std::string& why, absl::Time now);
  /// The donor accepts no stores any more: a request that waits for room in its memory would wait for ever.
  void DonorSilent(kv::LeaseId id, absl::Time now);
  /// How much of what lies there was used lately (kv::Tiers::Heat): its donor hears of it at once.
  void NoteHeat(kv::LeaseId id, int64_t heat, absl::Time now);
  /// This engine has no more use for the lease: it is drained within `drain`, at most the ttl.
  void GiveBack(kv::LeaseId id, absl::Duration drain, absl::Time now);
  /// Nor for any other, those included that are still on their way here.
  void GiveBackAll(absl::Duration drain, absl::Time now);
  bool borrows() const { return borrows_; }  // until then

  /// Renews leases, and gives up those that are past their deadlines. REQUIRES: messages that have arrived were handed
  /// in before.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest; infinite future: never.
  absl::Time NextDeadline() const;

  /// What is to be done since the last call, in order.
  std::vector<Action> TakeActions();

  /// Leases that are of use or may become so, by id.
  std::vector<Lease> Held() const;
  bool any_held() const;
  int64_t held_bytes() const;
  /// Of them, those that are being opened and may come into use: so much is on its way.
  int64_t opening_bytes() const;
  /// Those held, and the lost ones that kv still holds on to.
  int64_t num_leases() const { return static_cast<int64_t>(leases_.size()); }
  int64_t ignored() const { return ignored_; }
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  enum class Phase { kOpening, kActive, kDraining, kLosing };
  struct Entry {
    Lease lease;
    absl::Duration ttl;
    Phase phase = Phase::kOpening;
    bool wanted_back = false;  // before it was opened
    absl::Time asked_at;       // when the opening began: its donor may reckon the ttl from there on
    absl::Time give_up;        // opening, active: without an answer until then; draining: until
    absl::Time next_renewal = absl::InfiniteFuture();
    int64_t heat = kUnknownHeat;  // NoteHeat's
  };
  using Leases = std::map<kv::LeaseId, Entry>;

  Entry* Find(kv::LeaseId id, std::initializer_list<Phase> phases);
  void Renew(Entry& entry, absl::Time now);
  void WantBack(Entry& entry, absl::Time now);
  bool DrainBy(Entry& entry, absl::Time until);
  void StartDrain(Entry& entry, absl::Time until);
  void StartLose(Entry& entry, const std::string& why);
  void Fail(kv::LeaseId id, const std::string& why);
  void GiveUp(Entry& entry, absl::Time now);
  void Release(Entry& entry);
  void End(Entry& entry);

  static constexpr size_t kRemembered = 1024;  // ended leases; one that is started again finds no peer
  Options options_;
  Leases leases_;
  RecentIds<kv::LeaseId> ended_{kRemembered};
  std::vector<Action> actions_;
  bool borrows_ = true;
  int64_t ignored_ = 0;
};

}  // namespace swiftcache::engine::lease
