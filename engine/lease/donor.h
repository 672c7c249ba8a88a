// SPDX-License-Identifier: Apache-2.0
// The donor's side of all leases that an engine gives: decides what to clear, grant, revoke and fence. It is told of
// events and returns actions; kv, transport and broker client carry them out.
//
//   Donor donor({.instance_id = instance, .num_blocks = 1000, .block_bytes = 4096});
//   donor.Offered(lease, clock.Now());
//   for (Donor::Action& action : donor.TakeActions()) Do(action);  // ClearExtent; then donor.Cleared(id, true, now)
//   ... if (clock.Now() >= donor.NextDeadline()) donor.Tick(clock.Now());
//
// What each event does in each state. A dash: the event is ignored and counted, as is one for an unknown or ended
// lease. "End" stands for the actions Fence, TakeBack and Say RELEASED or FENCED; a lease that was never granted is not
// fenced, and its end is RELEASED.
//
//   input            | clearing          | granting          | granted        | active          | revoking
//   -----------------+-------------------+-------------------+----------------+-----------------+----------------
//   Offered (same)   | -                 | -                 | -              | -               | -
//   Cleared ok       | Grant -> granting | -                 | -              | -               | -
//     if wanted back | End               |                   |                |                 |
//   Cleared not ok   | Say RELEASED      | -                 | -              | -               | -
//   Granted          | -                 | Say GRANTED       | -              | -               | -
//                    |                   | -> granted        |                |                 |
//     if wanted back |                   | End               |                |                 |
//   GrantFailed      | -                 | End               | -              | -               | -
//   BorrowerOpened   | -                 | -                 | -> active      | -               | SendRevoke, if
//                    |                   |                   |                |                 | it was granted
//                    |                   |                   |                |                 | when revoked
//   Renewal          | -                 | -                 | -              | SendRenewed,    | - (it drains)
//                    |                   |                   |                | notes the heat  |
//   BorrowerReleased | -                 | -                 | End RELEASED   | End RELEASED    | End RELEASED
//   BorrowerGone     | -                 | -                 | End FENCED     | End FENCED      | End FENCED, for
//                    |                   |                   |                |                 | what it is revoked
//   Revoke, NeedBack,| StopClearing,     | StopGranting,     | End RELEASED   | SendRevoke      | -
//     TakeAdvised    | wanted back       | wanted back       | (nobody reads) |                 |
//                    | (not for a need)  |                   |                |                 |
//   RevokeAll        | as Revoke         | as Revoke         | SendRevoke, a  | SendRevoke      | -
//                    |                   |                   | second at most |                 |
//   Unknown          | as Revoke         | as Revoke         | Say GRANTED    | Say GRANTED     | Say GRANTED
//   Refused          | as Revoke         | as Revoke         | as Revoke      | as Revoke       | as Revoke
//   Tick             | -                 | -                 | after ttl      | ttl after last  | at the deadline
//                    |                   |                   | End FENCED     | renewal: FENCED | End FENCED, or
//                    |                   |                   |                |                 | RELEASED where
//                    |                   |                   |                |                 | nobody opened it
//
// The donor alone says what becomes of a lease: a broker that does not know one (Unknown: it has restarted, or has not
// seen this engine for a while) is told again, and one that believes in a lease which has ended is told RELEASED.
// Offers for another instance are ignored. An offer is declined (RELEASED) if its extent is not whole blocks of this
// arena, if it reaches into the reserve, if it overlaps a lease held here, and after RevokeAll. So two leases of one
// extent are never both granted, even if the broker offers both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/recent_ids.h"
#include "engine/lease/account.h"
#include "engine/lease/lease.h"

namespace swiftcache::engine::lease {

/// Every lease that is cleared is taken back exactly once, and is said to have ended; memory that was
/// granted is fenced before it is taken back. The time between revocation and TakeBack is at most revoke_deadline plus
/// the lateness of Tick; it depends on no other process. Thread-safety: none. Ownership: a value. Errors: none:
/// foreign, late and repeated messages are ignored and counted. Time: the donor's own clock, which never goes back.
class Donor {
 public:
  struct Options {
    std::string instance_id;                  // of this process: offers to other instances are ignored
    int64_t num_blocks = 0, block_bytes = 0;  // of the own arena
    int64_t never_lent_blocks = 0;            // the first of these: its reserve
    absl::Duration revoke_deadline = absl::Milliseconds(50);
    absl::Duration ttl = absl::Seconds(10);  // without a renewal
  };

  // What is to be done, in this order.
  struct ClearExtent {  // kv: own blocks out of the extent, and no new ones in; then Cleared
    Lease lease;
  };
  struct StopClearing {  // kv: stop; then Cleared with ok = false, unless it is cleared already
    kv::LeaseId id;
  };
  struct Grant {  // transport: Grant; then Granted or GrantFailed
    Lease lease;
  };
  struct StopGranting {  // transport: GrantFailed at once, unless it is granting it already
    Lease lease;
  };
  struct SendRenewed {
    kv::LeaseId id;
  };
  struct SendRevoke {
    kv::LeaseId id;
    absl::Duration time_left;
    bool again = false;  // it was sent before
  };
  struct Fence {  // transport: ends the grant; when it returns no borrower can read or write the extent any more
    kv::LeaseId id;
  };
  struct TakeBack {  // kv: the extent is free for local use again; follows the Fence of a lease that was granted
    kv::LeaseId id;
    Extent extent;
    bool fenced = false;    // false: the borrower gave it back, or never had it
    absl::Time revoked_at;  // infinite future if it was not
    absl::Time deadline;    // of the revocation; infinite future if there was none, or kv has it still
    bool shutdown = false;  // revoked as the donor ends, with more time than revoke_deadline
  };
  struct Say {  // broker: ReportLease, with the state that the lease has now; refused: Refused
    Lease lease;
    std::string why;
  };
  using Action =
      std::variant<ClearExtent, StopClearing, Grant, StopGranting, SendRenewed, SendRevoke, Fence, TakeBack, Say>;

  explicit Donor(const Options& options) : options_(options) {}

  /// A lease goes on with the longest that was said in its time, also until its next renewal: its borrower renews by
  /// another, if it has not heard of this one or has heard of it first.
  void SetTtl(absl::Duration ttl);

  // From the broker's Watch.
  /// A lease as the broker has it now; leases of other donors are ignored. OFFERED: as Offered. REVOKING: as Revoke.
  /// RELEASED and FENCED, if the lease is held: as Unknown. GRANTED or REVOKING, if it is not held: Say RELEASED.
  void OnLeaseUpdate(const Lease& lease, absl::Time now);
  /// All leases as the broker has them now: OnLeaseUpdate for each, and Unknown for those held and not among them.
  void OnLeaseSnapshot(const std::vector<Lease>& leases, absl::Time now);
  /// The broker refuses what was said of a lease: it must end.
  void Refused(kv::LeaseId id, const std::string& why, absl::Time now);
  void Offered(const Lease& lease, absl::Time now);
  // From kv: it has taken the extent out of local use, or cannot.
  void Cleared(kv::LeaseId id, bool ok, absl::Time now);
  // From the transport, as the answer to Grant.
  void Granted(kv::LeaseId id, kv::Epoch epoch, absl::Time now);
  void GrantFailed(kv::LeaseId id, const std::string& why, absl::Time now);
  // From the transport, of the borrower.
  void BorrowerOpened(kv::LeaseId id, absl::Time now);
  /// `heat`: how much of what lies there was used lately (kv::Tiers::Heat), as its borrower says.
  void Renewal(kv::LeaseId id, int64_t heat, absl::Time now);
  void BorrowerReleased(kv::LeaseId id, absl::Time now);
  void BorrowerGone(kv::LeaseId id, absl::Time now);

  /// Revokes one lease: because the broker wants it.
  void Revoke(kv::LeaseId id, const std::string& why, absl::Time now, Ending ending = Ending::kBroker);
  /// How borrowers weigh against each other, by instance, as the broker saw it last; it says so beforehand.
  void SetWeights(const std::map<std::string, int64_t>& weights) { weights_ = weights; }
  /// A need of `blocks`, without the broker's advice: revokes leases until what is on its way back, older revocations
  /// included, adds up to it, and hastens as many of the older ones as that takes. Next is always the borrower with the
  /// most bytes per weight (SetWeights; one without a weight counts as the heaviest), and of its leases the coldest by
  /// its last word: one that nobody has opened comes first, one of which nothing was said yet last; among equals the
  /// innermost (lowest first block). Leases that are still being cleared do not count: the loop takes their blocks back
  /// before it states a need.
  void NeedBack(int64_t blocks, absl::Time now);
  /// The broker's response to ScaleUp: as many blocks as these leases have from each of their borrowers, which are on
  /// their way back already or else come from its leases in the order of NeedBack.
  void TakeAdvised(const std::vector<kv::LeaseId>& leases, absl::Time now);
  /// Whether it matters which leases give `blocks` back: leases not on their way back belong to several borrowers, and
  /// not all of them are needed.
  bool HasChoice(int64_t blocks) const;
  /// Revokes all leases, and declines all later offers. Borrowers get `time_left`, at least revoke_deadline; who is
  /// just opening its lease hears of it then.
  void RevokeAll(const std::string& why, absl::Time now, absl::Duration time_left = absl::ZeroDuration());
  /// Own memory is needed: of what is being revoked `blocks` are back within revoke_deadline, or all if it is less.
  /// Borrowers with more time are told that it is over, in the order of NeedBack, until that adds up; others keep
  /// theirs.
  void Hasten(int64_t blocks, absl::Time now);

  /// Ends revoked leases that are past their deadlines: the part of Tick that depends on no message. It may be called
  /// between any two: before the first of these deadlines it looks at no lease.
  void FenceOverdue(absl::Time now);
  /// Ends leases that are past their deadlines. REQUIRES: messages that have arrived were handed in before, since a
  /// renewal in the queue is in time.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest; infinite future: never.
  absl::Time NextDeadline() const;

  /// What is to be done since the last call, in order.
  std::vector<Action> TakeActions();

  /// Leases that have not ended, by id.
  std::vector<Lease> Held() const;
  bool any_held() const { return !leases_.empty(); }
  /// Of these, those that were granted: what Register tells the broker.
  std::vector<Lease> Given() const;
  int64_t blocks_on_loan() const;      // taken out of local use
  int64_t blocks_coming_back() const;  // of these: being taken back
  bool revoking() const;               // whether a borrower is draining a lease: for revoke_deadline at most
  /// What was lent to whom. Given changes when a lease begins or ends here, and never else.
  const Accounts& accounts() const { return accounts_; }
  int64_t ignored() const { return ignored_; }
  /// INTERNAL says what does not add up: extents that overlap, states that disagree, deadlines that are missing.
  absl::Status CheckInvariants() const;

 private:
  enum class Phase { kClearing, kGranting, kGranted, kActive, kRevoking };
  struct Entry {
    Lease lease;
    absl::Duration ttl;
    Phase phase = Phase::kClearing;
    absl::Time deadline = absl::InfiniteFuture();
    bool wanted_back = false;  // before it was granted
    bool opened = false;       // by its borrower
    absl::Time revoked_at = absl::InfiniteFuture();
    int64_t heat = 0;                    // of an open lease kUnknownHeat, until its borrower says so
    Ending ending = Ending::kGivenBack;  // if it is revoked, why
    std::string why;

    void RaiseTtl(absl::Duration to) {
      const absl::Duration more = std::max(absl::ZeroDuration(), to - ttl);
      if (phase != Phase::kRevoking) deadline += more;
      ttl += more;
    }
    bool granted() const { return phase != Phase::kClearing && phase != Phase::kGranting; }
    bool taken() const { return phase != Phase::kClearing; }  // out of local use
    bool comes_back() const { return wanted_back || phase == Phase::kRevoking; }
    bool lent() const { return taken() && !comes_back(); }
  };
  using Leases = std::map<kv::LeaseId, Entry>;

  int64_t WeightOf(const std::string& borrower) const;
  /// In the order in which loans go, until they add up to `blocks`: of the leases that are `among` them.
  std::vector<Entry*> FirstToGo(int64_t blocks, absl::FunctionRef<bool(const Entry&)> among);
  // Of those that are lent and `among` them, as FirstToGo. Returns how many blocks come back.
  int64_t TakeForNeed(int64_t blocks, absl::FunctionRef<bool(const Entry&)> among, absl::Time now);
  Entry* Find(kv::LeaseId id, std::initializer_list<Phase> phases);
  std::string ReasonToDecline(const Lease& lease) const;
  void Unknown(kv::LeaseId id, absl::Time now);
  void SayReleased(Lease lease, const std::string& why);
  void SayEnd(Entry& entry, State end, const std::string& why);
  void EndUngranted(Entry& entry, bool cleared, const std::string& why);
  void End(Entry& entry, Ending ending, bool fenced, const std::string& why, absl::Time now);
  void WantBack(Entry& entry, Ending ending, const std::string& why, absl::Time now, absl::Duration time_left);
  void AskBack(Entry& entry, absl::Time now, absl::Duration time_left);
  void TakeBackExtent(const Entry& entry, bool fenced);

  static constexpr size_t kRemembered = 1024;  // ended leases; one that is started again finds no peer
  Options options_;
  Leases leases_;
  RecentIds<kv::LeaseId> ended_{kRemembered};
  std::vector<Action> actions_;
  Accounts accounts_;
  std::map<std::string, int64_t> weights_;  // of borrowers, by instance
  bool lends_ = true;
  absl::Time none_overdue_before_ = absl::InfiniteFuture();  // of the leases that are revoked
  int64_t ignored_ = 0;
};

}  // namespace swiftcache::engine::lease
