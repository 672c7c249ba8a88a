// SPDX-License-Identifier: Apache-2.0
// The borrower's half of all leases that an engine takes: when to open, to renew, to drain, to count as lost. A
// decider: it hears of things and says what is to be done; kv, transport and broker client do it.
//
//   Borrower borrower({.instance_id = instance, .block_bytes = 4096});
//   borrower.Granted(lease, clock.Now());
//   for (Borrower::Action& action : borrower.TakeActions()) Do(action);  // Open; then borrower.Opened(id, true, now)
//   ... if (clock.Now() >= borrower.NextDeadline()) borrower.Tick(clock.Now());
//
// What an input does in which state. A dash: ignored and counted. An input for an unknown or ended lease is ignored and
// counted too. An `until` passes in Tick.
//
//   input             | opening            | active              | draining            | losing
//   ------------------+--------------------+---------------------+---------------------+-------------
//   Granted (same)    | -                  | -                   | -                   | -
//   Opened ok         | ACTIVE, Use        | -                   | -                   | -
//   Opened not ok     | Close, LOST; ends  | -                   | -                   | -
//   Renewed           | -                  | counts as an answer | - (too late)        | -
//   Revoked           | Close; ends        | Drain -> draining   | - (the first holds) | -
//   GiveBack          | Close; ends        | Drain -> draining   | -                   | -
//   Drained           | -                  | -                   | SendRelease, Close; | Close; ends
//                     |                    |                     | ends                |
//   Dropped           | -                  | -                   | -                   | Close; ends
//   DonorGone         | Close, LOST; ends  | Lose, LOST          | Lose, LOST          | -
//   GenerationChanged,| -                  | Lose, LOST          | Lose, LOST          | -
//   StoreFailed       |                    |                     |                     |
//   DonorSilent       | -                  | LOST, Drain; as all | -                   | -
//                     |                    | of that donor       |                     |
//   EndedByBroker     | Close; ends        | Lose -> losing      | Lose -> losing      | -
//   Tick              | after ttl: Close,  | each ttl/3 a        | at `until`: Lose,   | -
//                     | LOST; ends         | SendRenewal; ttl    | LOST -> losing      |
//                     |                    | without an answer:  |                     |
//                     |                    | LOST, Drain         |                     |
//
// Lose may cross a Drained that is under way: it ends the lease as Dropped does, and the Dropped behind it is ignored.
// A grant with fewer bytes than its blocks here would take is LOST at once. LOST is reported once a lease at most. A
// lease is lost by the donor's word or by its generation, never because the broker is away; a loss is only ever a cache
// miss.
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
#include "engine/lease/lease.h"
#include "engine/lease/recent_ids.h"

namespace swiftcache::engine::lease {

/// Every lease that is opened is closed exactly once, and never while kv may use it: after Use there is no Close before
/// Drained or Dropped. A release is sent only after Drained. Thread-safety: none. Ownership: a value. Errors: none:
/// foreign, late and repeated messages are ignored and counted. Time: never goes back; the borrower's own clock.
class Borrower {
 public:
  struct Options {
    std::string instance_id;                        // of this process: leases of others are not ours
    int64_t block_bytes = 0;                        // of this engine; > 0
    absl::Duration ttl = absl::Seconds(10);         // without an answer of the donor; a third of it between renewals
    absl::Duration drain = absl::Milliseconds(50);  // for drains that nobody else bounds
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
  };
  struct Close {  // transport: unmap, forget; also where the opening has not been answered
    kv::LeaseId id;
  };
  // Broker: ReportLease. NOT_FOUND in the broker's present incarnation: EndedByBroker.
  struct ReportActive {
    kv::LeaseId id;
  };
  struct ReportLost {
    kv::LeaseId id;
    std::string why;
  };
  using Action = std::variant<Open, Use, SendRenewal, Drain, SendRelease, Lose, Close, ReportActive, ReportLost>;

  explicit Borrower(const Options& options) : options_(options) {}

  // From the broker's Watch.
  /// Any word about any lease. Of those that this instance takes: GRANTED: Granted. RELEASED and FENCED, while it is
  /// held: EndedByBroker. Of a revocation the donor tells.
  void Told(const Lease& lease, absl::Time now);
  void Granted(const Lease& lease, absl::Time now);
  void EndedByBroker(kv::LeaseId id, absl::Time now);
  // From the transport.
  void Opened(kv::LeaseId id, bool ok, absl::Time now);
  void Renewed(kv::LeaseId id, absl::Time now);
  void Revoked(kv::LeaseId id, absl::Duration time_left, absl::Time now);
  void DonorGone(kv::LeaseId id, absl::Time now);
  // From kv and its loop.
  /// After a Drain: nothing of the region is used any more, and nothing will be.
  void Drained(kv::LeaseId id, absl::Time now);
  /// After a Lose: likewise.
  void Dropped(kv::LeaseId id, absl::Time now);
  /// A reader saw that the memory has changed hands.
  void GenerationChanged(kv::LeaseId id, absl::Time now);
  /// The donor, or its end, left a store undone.
  void StoreFailed(kv::LeaseId id, const std::string& why, absl::Time now);
  /// The donor takes nothing of what is stored: whoever waits for room would wait for it.
  void DonorSilent(kv::LeaseId id, absl::Time now);
  /// Has no more use for it (or the engine drains).
  void GiveBack(kv::LeaseId id, absl::Time now);

  /// Renews, and gives up what is past its time. Hand in messages that wait before it.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest; infinite future: never.
  absl::Time NextDeadline() const;

  /// What is to be done since the last call, in order.
  std::vector<Action> TakeActions();

  /// Leases that are of use or may become so, by id: what Register tells the broker.
  std::vector<Lease> Held() const;
  /// Those, and the lost ones that kv still holds on to.
  int64_t num_leases() const { return static_cast<int64_t>(leases_.size()); }
  int64_t ignored() const { return ignored_; }
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  enum class Phase { kOpening, kActive, kDraining, kLosing };
  struct Entry {
    Lease lease;
    Phase phase = Phase::kOpening;
    absl::Time give_up;  // opening, active: without an answer until then; draining: until
    absl::Time next_renewal = absl::InfiniteFuture();
    bool told_lost = false;
  };
  using Leases = std::map<kv::LeaseId, Entry>;

  Entry* Find(kv::LeaseId id, std::initializer_list<Phase> phases);
  void StartDrain(Entry& entry, absl::Time until);
  void StartLose(Entry& entry);
  void Fail(kv::LeaseId id, const std::string& why);
  void TellLost(Entry& entry, const std::string& why);
  void LoseOrEnd(Entry& entry);
  void GiveUp(Entry& entry, absl::Time now);
  void End(Entry& entry);

  static constexpr size_t kRemembered = 1024;  // ended leases
  Options options_;
  Leases leases_;
  RecentIds ended_{kRemembered};
  std::vector<Action> actions_;
  int64_t ignored_ = 0;
};

}  // namespace swiftcache::engine::lease
