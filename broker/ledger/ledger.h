// SPDX-License-Identifier: Apache-2.0
// The broker's record of leases: which engine may borrow which memory of which other engine. A pure value: time and
// random bytes are handed in.
//
//   Ledger ledger({.id_prefix = random31}, [&] { return SixteenRandomBytes(); });
//   ledger.AddEngine(engine, leases_it_holds, now);
//   ASSIGN_OR_RETURN(LeaseResponse answer, ledger.RequestLease(chat, {.key = "r1", .want_bytes = 64 << 20}, now));
//   for (const Change& change : ledger.TakeChanges()) Publish(change);
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

/// Bounds on the work of one call, whatever an engine asks for: leases that one RequestLease makes, and leases of which
/// an engine can be the donor, or the borrower, at one time. (The shared-memory transport has a generation word for
/// each lease: ShmGenerations::kWords.)
inline constexpr size_t kMaxLeasesPerResponse = 256;
inline constexpr size_t kMaxLeasesPerSide = 4096;

struct Options {
  elastic::PolicyOptions elastic = {};
  uint32_t id_prefix = 1;  // 31 random bits of this incarnation: makes lease ids unique over restarts
  int64_t max_lease_bytes = int64_t{16} << 20;        // of one lease, at least one elastic unit
  absl::Duration offer_timeout = absl::Seconds(3);    // a donor that has not answered an offer has declined it
  absl::Duration decline_backoff = absl::Seconds(2);  // until an extent that was declined is offered again
  absl::Duration confirm_timeout = absl::Seconds(2);  // two heartbeats: for the other side to claim a lease, too
  absl::Duration request_ttl = absl::Seconds(5);      // an unmet request that is not repeated stops counting
  absl::Duration min_hold = absl::Seconds(2);         // leases younger than this are not taken back for fairness
  size_t max_remembered_requests = 256;               // of one engine: retries of older ones are new requests
};

struct LeaseRequest {
  std::string key;  // unique per request of the engine
  int64_t want_bytes = 0;
  int64_t waiting_tokens = 0;
};

/// The unit in which a donor can lend to the borrower that asked, or the reason why it cannot.
struct PairUnit {
  std::string donor;
  absl::StatusOr<elastic::ElasticUnit> unit;
};

struct LeaseResponse {
  std::vector<Lease> leases;   // as they are now; of a retried call those that have not ended
  std::string shortage;        // why fewer than wanted; empty: it is all there, or kMaxLeasesPerResponse are: ask again
  int64_t lendable_bytes = 0;  // that donors could still lend to this engine
  std::vector<PairUnit> units;  // with every donor that might lend
};

/// What an engine says became of a lease.
enum class ReportKind { kAccepted, kDeclined, kActive, kRevoking, kReleased, kFenced, kLost };
struct LeaseReport {
  LeaseId lease;
  ReportKind kind = ReportKind::kAccepted;
  Epoch epoch;  // with kAccepted
};

/// Every block has one user at any time: its owner, or the borrower of the one lease that covers it. A lease ends only
/// by a report of its donor, by the donor's silence about an offer, or by the donor's death.
///
/// Which donors serve a request: those with the most to lend, out of the tails of their arenas, in leases of at most
/// max_lease_bytes. Borrowers of one node share what the donors lend by weighted max-min fairness over waiting tokens
/// (elastic/fair_share.h). The first borrower may hold everything, but only until another asks: when a borrower has
/// less than 3/4 of its share, the broker revokes leases that are older than min_hold from borrowers above their
/// shares. When tokens wait, or a donor needs memory back, an idle borrower, which only caches, weighs almost nothing.
/// A model's quota bounds the bytes on lease to its engines.
///
/// Thread-safety: none; one loop owns it. Ownership: a value. Errors: as named; UNAVAILABLE everywhere for an engine
/// instance that was not added ("register again"). REQUIRES of all `now`: it does not go back.
class Ledger {
 public:
  using NewCapability = std::function<std::string()>;  // 16 random bytes
  Ledger(const Options& options, NewCapability new_capability);

  // Engines.
  /// Adds an engine, or replaces what is known of it, with all leases that it claims to hold as donor or borrower.
  /// Where the two sides disagree the donor is right: the leases that it claims enter the table, and a lease that it
  /// had accepted and does not claim has ended. A lease that only its borrower claims ends (RELEASED) when the donor
  /// registers without it, or after confirm_timeout. A lease that only its donor claims becomes REVOKING after
  /// confirm_timeout. Only the first 2 * kMaxLeasesPerSide claims are read. Idempotent. REQUIRES: num_blocks *
  /// block_bytes is at most membership::kMaxArenaBytes, as Validate checks.
  void AddEngine(const Engine& engine, const std::vector<Lease>& held, absl::Time now);
  /// The engine is dead or gone: leases from it end RELEASED; leases to it become REVOKING.
  void RemoveEngine(const std::string& name, absl::Time now);
  /// Whether new offers may go to it.
  void SetReady(const std::string& name, bool ready);

  // Calls of engines.
  /// Returns how many blocks the engine may lend, those on lease included. INVALID_ARGUMENT: negative numbers, more
  /// used blocks than it owns and borrows.
  absl::StatusOr<int64_t> ReportWindow(const Party& who, const elastic::Demand& demand, absl::Time now);
  /// INVALID_ARGUMENT: want_bytes < 1, negative waiting_tokens, no key or one above 128 bytes.
  absl::StatusOr<LeaseResponse> RequestLease(const Party& who, const LeaseRequest& request, absl::Time now);
  /// Which leases the donor should revoke to get need_blocks, in order: first those that are being revoked already,
  /// then the innermost lease of the borrower with the most bytes per weight, and so on. INVALID_ARGUMENT: need_blocks
  /// < 1. Changes nothing.
  absl::StatusOr<std::vector<LeaseId>> ScaleUp(const Party& who, int64_t need_blocks, absl::Time now);
  /// As in broker.proto. NOT_FOUND: no such lease. FAILED_PRECONDITION: no such step; names both states.
  /// PERMISSION_DENIED: not the reporter's lease, or the other side's report.
  absl::Status ReportLease(const Party& who, const LeaseReport& report, absl::Time now);

  // Calls of operators.
  /// None: no limit. INVALID_ARGUMENT: negative.
  absl::Status LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes, absl::Time now);
  /// NOT_FOUND: no such lease.
  absl::Status RevokeLease(LeaseId id, absl::Time now);

  // Time.
  /// Ends offers that were not answered and claims that were not confirmed.
  void Tick(absl::Time now);
  /// When Tick has something to do at the earliest.
  std::optional<absl::Time> NextDeadline() const;
  /// Moves every deadline back by `lateness`: for a broker that was itself suspended and could receive nothing.
  void PostponeDeadlines(absl::Duration lateness);

  /// The leases that have not ended, by id.
  std::vector<Lease> Snapshot() const;
  /// Those that are set, by model name.
  std::vector<LeaseLimit> limits() const;
  /// What changed since the last call, in order. Changes of limits are not among them.
  std::vector<Change> TakeChanges() { return table_.TakeChanges(); }
  /// On lease to the engines of a model, those being revoked included.
  int64_t BorrowedBytes(const std::string& model_name) const;
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  struct Member {
    Engine engine;
    std::unique_ptr<elastic::Policy> policy;
    // As a borrower: what its last request asked for and did not get.
    int64_t unmet_bytes = 0, waiting_tokens = 0;
    absl::Time requested_at = absl::InfinitePast();
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
  // One request while it is being served. Units: bytes.
  struct Allocation {
    int64_t asked = 0, quota = 0;  // what the borrower asks for; what its model's limit leaves
    int64_t share = 0, held = 0;   // what it may hold in all; what it held before
    int64_t got = 0, coming = 0;   // offered now; being taken back from others
    size_t max_leases = 0;         // that this response may offer
    bool full = false;             // max_leases are offered: asking again may give more
  };
  struct Backoff {
    Party donor;
    Extent extent;
    absl::Time until;
  };
  struct Orphan {  // a lease that only its borrower claims
    Lease lease;
    absl::Time until;
  };

  // ledger.cc
  absl::StatusOr<Member*> FindMember(const Party& who);
  absl::Status ApplyDonorReport(Lease& lease, const LeaseReport& report, absl::Time now);
  absl::Status ApplyAcceptance(Lease& lease, Epoch epoch);
  absl::Status ApplyBorrowerReport(Record& record, ReportKind kind);
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
  std::vector<LeaseId> AllocateLeases(Allocation& allocation, Member& member, int64_t waiting_tokens, Sources& sources,
                                      absl::Time now);
  static std::string ExplainShortage(const Allocation& allocation, const Engine& borrower, const Sources& sources);
  Sources SourcesFor(const Member& borrower, absl::Time now);
  int64_t ShareOf(const Member& borrower, int64_t want_bytes, const Sources& sources, absl::Time now,
                  std::map<Party, int64_t>* shares);
  int64_t HeldBytes(const Party& borrower, const Sources& sources) const;
  const Member* FindBorrower(const Party& borrower) const;
  bool HasOpenRequest(const Member& member, absl::Time now) const {
    return now - member.requested_at < options_.request_ttl;
  }
  bool OnlyCaches(const Party& borrower, absl::Time now) const;
  int64_t WeightOf(const Party& borrower, bool against_need, absl::Time now) const;
  int64_t QuotaLeft(const std::string& model_name) const;
  size_t MaxLeases(const Party& borrower) const;
  std::vector<LeaseId> Offer(const Member& borrower, int64_t want_bytes, const Allocation& allocation, Sources& sources,
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
