// SPDX-License-Identifier: Apache-2.0
// A lease as the broker knows it, and what it knows of the engines that lend and borrow: the plain twins of proto Lease
// and of the parts of EngineInfo that matter here.
//
//   Lease lease{.id = LeaseId(7), .donor = {"code", "i1"}, .borrower = {"chat", "i2"}, .extent = {40, 8}};
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "broker/ledger/lease_state.h"
#include "common/base/strong_id.h"

namespace swiftcache::broker::ledger {

/// Unique over restarts of the broker.
using LeaseId = StrongId<struct LeaseIdTag, int64_t>;
/// The generation of an extent at its grant; set by the donor.
using Epoch = StrongId<struct EpochTag, uint64_t>;

/// One process of an engine.
struct Party {
  std::string name, instance_id;
  friend auto operator<=>(const Party&, const Party&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Party& party) {
    return H::combine(std::move(h), party.name, party.instance_id);
  }
};

/// Adjacent blocks of a donor's arena.
struct Extent {
  int64_t first_block = 0, num_blocks = 0;
  int64_t end() const { return first_block + num_blocks; }
  bool Overlaps(const Extent& other) const { return first_block < other.end() && other.first_block < end(); }
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// Why the broker asks a donor to revoke a lease.
enum class RevokeReason {
  kOperator,
  kLimit,
  kFairness,
  kBorrowerGone,  // before the donor had accepted, or in order
};

/// Lower case, for logs.
const char* ReasonName(RevokeReason reason);

struct Lease {
  LeaseId id;
  Party donor, borrower;
  std::string borrower_model;
  Extent extent;  // in the donor's blocks
  int64_t num_bytes = 0;
  int64_t borrower_blocks = 0;  // whole ones, from the extent's first byte on: K_i of SwiftCache eq. 2
  std::optional<Epoch> epoch;   // once the donor has accepted
  LeaseState state = LeaseState::kOffered;
  std::optional<RevokeReason> revoke_reason;  // from kRevoking on
  std::string channel;                        // the donor's
  std::string capability;                     // for donor and borrower alone
  friend bool operator==(const Lease&, const Lease&) = default;
};

/// What the engines of a model may borrow together at most. The younger of two counts: engines bring the limits that they
/// know to a broker that has restarted, and some may be old.
struct LeaseLimit {
  std::string model_name;
  std::optional<int64_t> max_borrowed_bytes;  // none: no limit any more
  int64_t set_at_micros = 0;                  // since 1970, by the wall clock of the broker that was told it
  friend bool operator==(const LeaseLimit&, const LeaseLimit&) = default;
};

/// An engine as a donor and borrower.
struct Engine {
  Party party;
  std::string model_name;
  std::string node_id;  // memory is shared within a node
  std::string channel;  // "": shares nothing
  int64_t page_bytes = 0;
  int64_t block_bytes = 0, block_tokens = 0, num_blocks = 0;
  int64_t never_lent_blocks = 0;  // the first of these: what it keeps whatever the policy says
  bool ready = false;             // only ready engines are asked to lend
};

/// How much a borrower weighs against others of the same donor.
struct BorrowerWeight {
  std::string instance_id;
  int64_t weight = 1;
  friend bool operator==(const BorrowerWeight&, const BorrowerWeight&) = default;
};

/// A lease that is new or has changed.
struct Change {
  Lease lease;
  std::optional<LeaseState> before;  // none: it is new to the table
};

}  // namespace swiftcache::broker::ledger
