// SPDX-License-Identifier: Apache-2.0
// Which donor's memory goes to which borrower.
//
//   ASSIGN_OR_RETURN(LeaseResponse answer, allocation.Request(borrower, request, now));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"
#include "broker/ledger/limits.h"
#include "broker/ledger/members.h"
#include "broker/ledger/options.h"
#include "broker/ledger/sources.h"

namespace swiftcache::broker::ledger {

using NewCapability = std::function<std::string()>;  // 16 random bytes

struct LeaseRequest {
  std::string key;  // unique per request of the engine
  int64_t want_bytes = 0;
  int64_t waiting_tokens = 0;
  int64_t held_bytes = 0;  // that the engine has on lease, as it knows it
};

struct LeaseResponse {
  std::vector<Lease> leases;   // as they are now; of a retried call those that have not ended
  std::string shortage;        // why fewer than wanted; empty: it is all there, or kMaxLeasesPerResponse are: ask again
  int64_t lendable_bytes = 0;  // that donors could still lend to this engine, or is on its way of earlier requests
  int64_t coming_bytes = 0;    // that is being taken back from others for this one
  std::vector<PairUnit> units;  // with every donor that might lend
};

/// Serves a request out of the tails of the arenas of those with the most to lend, in leases of at most
/// max_lease_bytes. Borrowers of one node share what the donors lend by weighted max-min fairness over waiting tokens
/// (elastic/fair_share.h). The first borrower may hold everything, but only until another asks: when a borrower has
/// less than 3/4 of its share, leases that are older than min_hold are taken back for it from borrowers above their
/// shares. Who only caches yields to tokens that wait, and may so end below its share, by less than a lease. An engine
/// that is not here (it has not registered again with a new broker, or cannot reach this one) keeps what it holds, which
/// is no part of what is divided: what it needs is not known. What the borrower holds of donors that are not here counts
/// as held.
///
/// Thread-safety: none. Ownership: borrows parties, table, members and limits.
class Allocation {
 public:
  Allocation(const Options& options, NewCapability new_capability, const Parties& parties, LeaseTable& table,
             const Members& members, const Limits& limits)
      : options_(options),
        new_capability_(std::move(new_capability)),
        parties_(parties),
        table_(table),
        members_(members),
        limits_(limits) {}

  /// As Ledger::RequestLease.
  absl::StatusOr<LeaseResponse> Request(Member& borrower, const LeaseRequest& request, absl::Time now);

 private:
  // What a party held before the request, less what is being revoked, and what it may hold in all. Units: bytes.
  struct Stake {
    int64_t held = 0, share = 0;
    int64_t own = 0;  // of its own arena, as a donor: it cannot borrow that
  };
  // One request while it is being served. Units: bytes.
  struct Case {
    Member& borrower;
    Sources sources;
    absl::Time now;
    int64_t asked = 0, quota = 0;          // what the borrower asks for; what its model's limit leaves
    int64_t unseen = 0;                    // that the borrower holds of donors that are not here, or by another name
    int64_t on_their_way = 0;              // to the borrower, of earlier requests
    std::map<PartyId, Stake> stakes = {};  // of members in the memory of the sources
    int64_t pool = 0;                      // what is divided
    int64_t share = 0, held = 0;           // the borrower's stake
    int64_t got = 0, coming = 0;           // offered now; being taken back from others
    size_t max_leases = 0;                 // that this response may offer
    bool full = false;                     // max_leases are offered: asking again may give more
  };

  LeaseResponse Again(const std::vector<LeaseId>& ids, Case& request);
  std::vector<LeaseId> Serve(Case& request, int64_t waiting_tokens);
  void Share(Case& request, int64_t want_bytes) const;
  std::vector<LeaseId> Offer(Case& request, int64_t want_bytes);
  std::optional<LeaseId> OfferFrom(Source& source, const Case& request, int64_t max_units);
  int64_t Rebalance(Case& request, int64_t lacking_bytes);
  void AddRipe(const Places& stay, int64_t lacking_bytes, absl::Time ripe_since, Places& ripe) const;
  static std::string ExplainShortage(const Case& request);
  void Remember(Member& member, const std::string& key, std::vector<LeaseId> ids) const;
  std::vector<Lease> Alive(const std::vector<LeaseId>& ids) const;
  LeaseId NewId();

  const Options& options_;
  const NewCapability new_capability_;
  const Parties& parties_;
  LeaseTable& table_;
  const Members& members_;
  const Limits& limits_;
  int64_t last_id_ = 0;
};

}  // namespace swiftcache::broker::ledger
