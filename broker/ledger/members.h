// SPDX-License-Identifier: Apache-2.0
// The engines that may lend and borrow, with what each has asked for lately.
//
//   Member& member = members.Put(engine);
//   ASSIGN_OR_RETURN(Member* member, members.Require(who));
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/elastic/policy.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/parties.h"

namespace swiftcache::broker::ledger {

struct Member {
  // First what is asked of every borrower of a donor: it lies in one line of the processor's cache.
  PartyId id;
  bool idle = false;  // by its last window: nothing runs, nothing waits
  // As a borrower: what its last request asked for and did not get, until it is idle.
  int64_t unmet_bytes = 0, waiting_tokens = 0;
  absl::Time requested_at = absl::InfinitePast();
  std::unique_ptr<elastic::Policy> policy;  // none: it has no arena
  Engine engine;
  absl::Time here_since;                                 // it was not here before
  absl::Time answered_at = absl::InfinitePast();         // an offer, last
  absl::Time granted_at = absl::InfinitePast();          // as a borrower: a lease, last
  absl::Time silent_until = absl::InfinitePast();        // it let an offer pass unanswered: others are asked first
  std::map<std::string, std::vector<LeaseId>> requests;  // by key: what a retry gets
  std::deque<std::string> request_order;                 // oldest first

  void ForgetRequest() {
    unmet_bytes = waiting_tokens = 0;
    requested_at = absl::InfinitePast();
  }
  /// As its policy has it, and never its reserve. REQUIRES: it has a policy.
  int64_t LendableBlocks(int64_t lent_blocks, const elastic::UnitBlocks& unit, absl::Time now) const {
    return std::min(policy->LendableBlocks(lent_blocks, unit, now), engine.num_blocks - engine.never_lent_blocks);
  }
};

/// Thread-safety: none. Ownership: owns the members; pointers live until Erase. Borrows `parties`, where it holds them.
class Members {
 public:
  using Group = std::vector<PartyId>;  // by name

  /// `request_ttl`: a request that is not repeated stops counting after it.
  Members(absl::Duration request_ttl, Parties& parties) : request_ttl_(request_ttl), parties_(parties) {}

  /// Adds an engine, or replaces what is known of it. REQUIRES: no other instance has its name.
  Member& Put(const Engine& engine);
  void Erase(const std::string& name);

  /// Null: there is none of that name, or it is another instance.
  Member* Find(const std::string& name) const;
  Member* Find(const Party& party) const;
  Member* Find(PartyId party) const { return party.value() < by_id_.size() ? by_id_[party.value()] : nullptr; }
  /// UNAVAILABLE instead ("register, then ask again").
  absl::StatusOr<Member*> Require(const Party& party) const;
  const Group& OfNode(const std::string& node_id) const;

  bool HasOpenRequest(const Member& member, absl::Time now) const { return now - member.requested_at < request_ttl_; }
  /// Nothing runs or waits there and it asks for no more: no request needs what it holds now.
  bool OnlyCaches(const Member& borrower, absl::Time now) const {
    return borrower.idle && !HasOpenRequest(borrower, now);
  }
  /// Its weight among borrowers, in tokens. `against_need`: where tokens of others wait, who only caches weighs almost
  /// nothing.
  int64_t WeightOf(const Member& borrower, bool against_need, absl::Time now) const;

 private:
  void Enter(const Member& member);
  void Leave(const Member& member);

  const absl::Duration request_ttl_;
  Parties& parties_;
  absl::flat_hash_map<std::string, std::unique_ptr<Member>> members_;  // by name
  std::vector<Member*> by_id_;                                         // null: not a member
  absl::flat_hash_map<std::string, Group> by_node_;
};

}  // namespace swiftcache::broker::ledger
