// SPDX-License-Identifier: Apache-2.0
// One continuation as the scheduler sees it: tokens, how far they are computed, the blocks that hold their KV.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/strong_id.h"
#include "engine/kv/leased_count.h"
#include "engine/kv/prefix_tree.h"
#include "engine/kv/sequence_blocks.h"
#include "engine/sched/token_list.h"

namespace swiftcache::engine::sched {

/// Unique in the life of an engine; of two, the earlier has the smaller.
using SequenceId = StrongId<struct SequenceIdTag, int64_t>;

/// Sequences that are of one request. Kept by the scheduler. Thread-safety: none. Ownership: outlives its sequences.
struct SequenceGroup {
  int64_t running = 0;
};

/// Thread-safety: none. Ownership: a value; must not outlive the cache that `blocks` came from. Units: tokens.
struct Sequence {
  virtual ~Sequence() = default;  // who makes sequences may know more of them

  // Set by whoever makes it; tokens grow by one after each step that sampled.
  SequenceId id;
  int32_t priority = 0;            // larger is more urgent; must not change while the scheduler has it
  SequenceGroup* group = nullptr;  // null: one of its own
  std::string cache_salt;
  TokenList tokens;  // prompt, then output
  int64_t prompt_tokens = 0;

  // Kept by the scheduler.
  kv::BlockTable blocks;
  kv::PrefixTree::InUse prefix_in_use;   // what others hold of it, while it waits
  int64_t computed_tokens = 0;           // leading tokens whose KV is in the blocks
  std::optional<int64_t> cached_tokens;  // found in the prefix cache when it first ran; none: has not run yet
  int64_t cached_leased_tokens = 0;      // of these, in leases
  int64_t losses = 0;                    // how often a lease took blocks of it along
  int64_t furthest_tokens = 0;           // leading tokens that were ever computed, or found
  int64_t lost_tokens = 0;               // of these, those that are computed again because of leases if at all
  int64_t again_tokens = 0;              // how many were
  bool owned_only = false;               // runs from memory that the engine owns
  bool waits_for_room = false;    // runs, and got no tokens for want of memory in the last plan that had its turn
  kv::LeasedCount leased_blocks;  // of `blocks`; where sequences take turns
  bool reads_leases = false;      // it has any; likewise

  int64_t remaining_tokens() const { return tokens.size() - computed_tokens; }
};

/// The order in which sequences are served: larger priority, then arrival.
struct ServedBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority > b->priority : a->id < b->id;
  }
};

}  // namespace swiftcache::engine::sched
