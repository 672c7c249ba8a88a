// SPDX-License-Identifier: Apache-2.0
// The broker's book of leases: who may borrow what from whom, as a pure value. Time and random bytes are handed in.
//
//   Ledger ledger({.id_prefix = random31}, [&] { return SixteenRandomBytes(); });
//   ledger.Enter(engine, leases_it_holds, now);
//   ASSIGN_OR_RETURN(Answer answer, ledger.RequestLease(chat, {.key = "r1", .want_bytes = 64 << 20}, now));
//   for (const Change& change : ledger.TakeChanges()) Tell(change);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/elastic/elastic_unit.h"
#include "broker/elastic/policy.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"

namespace swiftcache::broker::ledger {

/// One call's work is bounded, whatever an engine asks: an answer makes at most so many leases, and an engine is the
/// donor of at most so many, and the borrower of as many. (The shared-memory transport has a generation word for each:
/// ShmGenerations::kWords.)
inline constexpr size_t kMaxLeasesPerAnswer = 256;
inline constexpr size_t kMaxLeasesASide = 4096;

struct Options {
  elastic::PolicyOptions elastic = {};
  uint32_t id_prefix = 1;  // 31 random bits of this incarnation: makes lease ids unique over restarts
  int64_t max_lease_bytes = int64_t{16} << 20;        // of one lease, at least one elastic unit
  absl::Duration offer_timeout = absl::Seconds(3);    // a donor that has not answered an offer has declined it
  absl::Duration decline_backoff = absl::Seconds(2);  // until an extent that was declined is offered again
  absl::Duration confirm_timeout = absl::Seconds(2);  // two heartbeats: until a lease that one side claims dies
  absl::Duration want_ttl = absl::Seconds(5);         // a want that was not repeated counts no longer among others'
  absl::Duration min_hold = absl::Seconds(2);         // leases younger than this are not taken back for fairness
  size_t max_remembered_requests = 256;               // of one engine: retries of older ones are new requests
};

struct LeaseRequest {
  std::string key;  // unique per request of the engine
  int64_t want_bytes = 0;
  int64_t waiting_tokens = 0;
};

/// How memory moves between a donor and the borrower that asked; an error: it cannot, and why.
struct PairUnit {
  std::string donor;
  absl::StatusOr<elastic::ElasticUnit> unit;
};

struct Answer {
  std::vector<Lease> leases;    // as they are now; of a retried call those that have not ended
  std::string shortage;         // why fewer than wanted; empty: it is all there, or kMaxLeasesPerAnswer are: ask again
  int64_t lendable_bytes = 0;   // that donors could still lend to this engine
  std::vector<PairUnit> units;  // with every donor that might lend
};

/// What an engine says became of a lease.
enum class ReportKind { kAccepted, kDeclined, kActive, kRevoking, kReleased, kFenced, kLost };
struct LeaseReport {
  LeaseId lease;
  ReportKind kind = ReportKind::kAccepted;
  Epoch epoch;  // with kAccepted
};

/// One owner per extent, always: an extent is its owner's or on exactly one lease that has not ended, and leaves the
/// table only by its owner's word, its silence about an offer, or its death.
///
/// Whose memory goes to whom: a request is served from the donors with the most to lend, out of the tails of their
/// arenas, in leases of at most max_lease_bytes. Borrowers of one node share what their donors lend by weighted max-min
/// fairness over waiting tokens (elastic/fair_share.h), so who comes first holds all only while nobody else wants any:
/// a borrower that has less than 3/4 of its share makes the broker revoke leases, older than min_hold, of those above
/// theirs. Against tokens that wait, and a donor's need, what an idle borrower has cached counts for next to nothing. A
/// model's quota bounds the bytes on lease to its engines.
///
/// Thread-safety: none; one loop owns it. Ownership: a value. Errors: as named; UNAVAILABLE everywhere for an engine
/// that is not entered as that instance ("register again"). REQUIRES of all `now`: it does not go back.
class Ledger {
 public:
  using NewCapability = std::function<std::string()>;  // 16 random bytes
  Ledger(const Options& options, NewCapability new_capability);

  // Engines.
  /// Enters an engine or replaces what is known of it, with all the leases that it holds as donor or borrower. The
  /// donor's word counts: its claims enter the table, and what it has accepted and does not claim has ended. A claim of
  /// a borrower alone dies (RELEASED is told) once its donor is there, or was not within confirm_timeout; a claim of a
  /// donor alone is REVOKING when its borrower has not claimed it within confirm_timeout. Of more than
  /// 2 * kMaxLeasesASide claims the rest count as not made. Idempotent. REQUIRES: num_blocks * block_bytes is at most
  /// membership::kMaxArenaBytes, as Validate has it.
  void Enter(const Engine& engine, const std::vector<Lease>& held, absl::Time now);
  /// The engine is dead or gone: leases from it end RELEASED; leases to it become REVOKING.
  void Leave(const std::string& name, absl::Time now);
  /// Whether new offers may go to it.
  void SetReady(const std::string& name, bool ready);

  // What engines ask.
  /// Returns what it may lend, lent blocks included. INVALID_ARGUMENT: negative numbers, more used than there is.
  absl::StatusOr<int64_t> ReportWindow(const Party& who, const elastic::Demand& demand, absl::Time now);
  /// INVALID_ARGUMENT: want_bytes < 1, negative waiting_tokens, no key or one above 128 bytes.
  absl::StatusOr<Answer> RequestLease(const Party& who, const LeaseRequest& request, absl::Time now);
  /// Which leases the donor revokes to get need_blocks, in order: those already under way, then the innermost of the
  /// borrower that is most above its share by weight, and so on. INVALID_ARGUMENT: need_blocks < 1. Changes nothing.
  absl::StatusOr<std::vector<LeaseId>> ScaleUp(const Party& who, int64_t need_blocks, absl::Time now);
  /// As in broker.proto. NOT_FOUND: no such lease. FAILED_PRECONDITION: no such step; names both states.
  /// PERMISSION_DENIED: not the reporter's lease, or the other side's report.
  absl::Status ReportLease(const Party& who, const LeaseReport& report, absl::Time now);

  // What operators ask.
  /// None: no limit. INVALID_ARGUMENT: negative.
  absl::Status LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes, absl::Time now);
  /// NOT_FOUND: no such lease.
  absl::Status RevokeLease(LeaseId id, absl::Time now);

  // Time.
  /// Ends offers that were not answered and claims that were not confirmed.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest.
  std::optional<absl::Time> NextDeadline() const;
  /// Puts every deadline off: for a broker that itself slept and could not hear.
  void Forgive(absl::Duration lateness);

  /// The leases that have not ended, by id.
  std::vector<Lease> Snapshot() const;
  /// Those that are set, by model name.
  std::vector<LeaseLimit> limits() const;
  /// What changed since the last call, in order; limits are the caller's to tell.
  std::vector<Change> TakeChanges() { return table_.TakeChanges(); }
  /// On lease to the engines of a model, those being revoked included.
  int64_t BorrowedBytes(const std::string& model_name) const;
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  struct Member {
    Engine engine;
    std::unique_ptr<elastic::Policy> policy;
    // As a borrower: what it lacked at its last request.
    int64_t unmet_bytes = 0, waiting_tokens = 0;
    absl::Time wanted_at = absl::InfinitePast();
    bool idle = false;                                     // by its last window: nothing runs, nothing waits
    std::map<std::string, std::vector<LeaseId>> requests;  // by key: what a retry gets
    std::deque<std::string> request_order;                 // oldest first
  };
  // A donor as one borrower sees it.
  struct Source {
    Member* donor = nullptr;
    elastic::ElasticUnit unit;
    Extent region;              // where leases may lie
    std::vector<Extent> taken;  // on lease, or declined a moment ago
    int64_t free_units = 0;
    int64_t free_bytes() const { return free_units * unit.bytes; }
  };
  struct Sources {
    std::vector<Source> list;
    std::vector<PairUnit> units;  // refused pairs are here alone
    int64_t free_bytes() const;
    bool Has(const Party& donor) const;
  };
  // One request on its way to an answer. Units: bytes.
  struct Deal {
    int64_t asked = 0, quota = 0;  // what the borrower wants; what its model's limit leaves
    int64_t share = 0, held = 0;   // what it may hold in all; what it held before
    int64_t got = 0, coming = 0;   // offered now; being taken back from others
    size_t max_leases = 0;         // of this answer
    bool full = false;             // so many are offered: there may be more
  };
  struct Backoff {
    Party donor;
    Extent extent;
    absl::Time until;
  };
  struct Orphan {  // claimed by its borrower alone
    Lease lease;
    absl::Time until;
  };

  // ledger.cc
  absl::StatusOr<Member*> FindMember(const Party& who);
  absl::Status HearDonor(Member& donor, Lease& lease, const LeaseReport& report, absl::Time now);
  absl::Status HearAccepted(Lease& lease, Epoch epoch);
  absl::Status HearBorrower(Record& record, ReportKind kind);
  void EndOffer(LeaseId id, absl::Time now);
  void BeginRevoking(LeaseId id);
  void EnforceLimit(const std::string& model_name, int64_t max_borrowed_bytes);
  std::string ModelOf(const std::string& engine_name) const;

  // ledger_claims.cc
  void Replace(const Engine& engine, absl::Time now);
  void ClaimAsDonor(const Lease& claim, absl::Time now);
  void EnterClaim(const Lease& claim, absl::Time now);
  void ClaimAsBorrower(const Lease& claim, absl::Time now);
  void DropUnclaimed(const Party& who, const std::set<LeaseId>& claimed);
  void SettleOrphans(const Party& donor);
  bool ClaimIsSound(const Lease& claim) const;

  // ledger_request.cc
  std::vector<LeaseId> Strike(Deal& deal, Member& member, int64_t waiting_tokens, Sources& sources, absl::Time now);
  static std::string Shortage(const Deal& deal, const Engine& borrower, const Sources& sources);
  Sources SourcesFor(const Member& borrower, absl::Time now);
  int64_t ShareOf(const Member& borrower, int64_t want_bytes, const Sources& sources, absl::Time now,
                  std::map<Party, int64_t>* shares);
  int64_t HeldBytes(const Party& borrower, const Sources& sources) const;
  const Member* FindBorrower(const Party& borrower) const;
  bool Wants(const Member& member, absl::Time now) const { return now - member.wanted_at < options_.want_ttl; }
  bool OnlyCaches(const Party& borrower, absl::Time now) const;
  int64_t WeightOf(const Party& borrower, bool against_need, absl::Time now) const;
  int64_t QuotaLeft(const std::string& model_name) const;
  size_t MaxLeases(const Party& borrower) const;
  std::vector<LeaseId> Offer(const Member& borrower, int64_t want_bytes, const Deal& deal, Sources& sources,
                             absl::Time now);
  std::optional<LeaseId> OfferFrom(Source& source, const Member& borrower, int64_t max_units, absl::Time now);
  int64_t Rebalance(const Member& borrower, int64_t lacking_bytes, bool starved, const Sources& sources,
                    const std::map<Party, int64_t>& shares, absl::Time now);
  void Remember(Member& member, const std::string& key, std::vector<LeaseId> ids);
  std::vector<Lease> Alive(const std::vector<LeaseId>& ids);
  LeaseId NewId();

  // ledger_scale_up.cc
  elastic::UnitBlocks UnitBlocksOf(const Member& donor, const Lease& lease) const;
  std::vector<LeaseId> TakeBackOrder(const std::vector<const Lease*>& lent, int64_t target_blocks,
                                     absl::Time now) const;

  const Options options_;
  const NewCapability new_capability_;
  LeaseTable table_;
  std::map<std::string, Member> members_;
  std::map<std::string, int64_t> limits_;  // by model name
  std::vector<Backoff> backoffs_;
  std::map<std::pair<LeaseId, Party>, Orphan> orphans_;  // by claimant
  int64_t last_id_ = 0;
};

}  // namespace swiftcache::broker::ledger
