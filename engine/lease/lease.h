// SPDX-License-Identifier: Apache-2.0
// A lease as its donor and its borrower know it. A plain struct with the fields of proto Lease, where their meaning is
// written down.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/time/time.h"
#include "engine/kv/lease_id.h"
#include "engine/kv/place.h"
#include "engine/lease/ending.h"

namespace swiftcache::engine::lease {

/// A run of adjacent blocks of its owner's arena.
struct Extent {
  int64_t first_block = 0, num_blocks = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// True where the extents share a block. REQUIRES: both are well formed.
bool Overlap(const Extent& a, const Extent& b);

/// Whether the extent is one block or more of an arena of `num_blocks`.
bool LiesIn(const Extent& extent, int64_t num_blocks);

/// The extent as the KV cache of its owner knows it. REQUIRES: it lies in the arena.
kv::PlaceRun PlacesOf(const Extent& extent);

/// offered -> granted -> revoking -> released | fenced. The last two are ends.
enum class State { kOffered, kGranted, kRevoking, kReleased, kFenced };

/// Lower case, for metrics and logs.
const char* StateName(State state);

/// The heat (kv::Tiers::Heat) of a lease of which its borrower has said nothing yet, the hottest: new leases mostly
/// have the latest blocks.
constexpr int64_t kUnknownHeat = std::numeric_limits<int64_t>::max();

/// What is wanted back is opened no later, so that an end waits no longer for a peer that does not answer: an opening
/// takes milliseconds, and one that makes a communicator is better given up.
constexpr absl::Duration kOpeningPatience = absl::Seconds(1);

/// Thread-safety: a value. Units: `extent` in the donor's blocks.
struct Lease {
  kv::LeaseId id;
  std::string donor, donor_instance, borrower, borrower_instance;
  std::string borrower_model;  // what the borrower serves
  Extent extent;
  int64_t num_bytes = 0;
  int64_t borrower_blocks = 0;  // whole blocks of the borrower, from the extent's first byte on
  kv::Epoch epoch;              // from GRANTED on
  State state = State::kOffered;
  Ending revoke_reason = Ending::kBroker;  // where it is revoking: why the broker wants that
  std::string channel, capability;
  friend bool operator==(const Lease&, const Lease&) = default;
};

}  // namespace swiftcache::engine::lease
