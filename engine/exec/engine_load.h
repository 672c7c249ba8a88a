// SPDX-License-Identifier: Apache-2.0
// What an engine has to do and where its memory is, at one moment.
//
//   const EngineLoad load = engine->Load();
//   if (load.kv_blocks_free + load.kv_blocks_cached < wanted_blocks) ...   // it would have to wait
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/kv/sharing_worth.h"

namespace swiftcache::engine::exec {

/// A snapshot for heartbeats, metrics and tests. Units: as named.
/// Every block is used (held by a sequence), cached (held by the prefix cache alone, given away on demand) or free.
struct EngineLoad {
  int64_t running_requests = 0, waiting_requests = 0;
  int64_t kv_blocks_total = 0, kv_blocks_used = 0, kv_blocks_cached = 0, kv_blocks_free = 0;  // of the own arena
  int64_t kv_blocks_leased_out = 0;  // lent to others: in none of the other three
  int64_t kv_blocks_withheld = 0;    // nobody's until there is other memory to lay there: likewise
  int64_t kv_blocks_slots = 0;       // through which leased ones are streamed: likewise
  int64_t kv_blocks_leased_in = 0, kv_blocks_leased_in_used = 0;  // of others; used: by sequences or the prefix cache,
  int64_t kv_blocks_leased_in_held = 0;                           // of these by sequences
  std::optional<absl::Duration> decode_bound;  // of the longest sequence that own memory and leases hold at present
  int64_t steps_total = 0, preemptions_total = 0, evicted_blocks_total = 0;
  int64_t prompt_tokens_computed = 0, prompt_tokens_local = 0, prompt_tokens_donor = 0;  // since the start, by source
  kv::SharingWorth sharing;                                                              // since the start
  int64_t reclaims = 0;         // leases taken back, for whatever reason but its own ordered end
  absl::Duration last_reclaim;  // from the revocation to the memory
  // Counts up with every step and every layer of it, also within a step, and while work waits for leases.
  int64_t progress = 0;
};

}  // namespace swiftcache::engine::exec
