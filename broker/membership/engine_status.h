// SPDX-License-Identifier: Apache-2.0
// What the broker knows of one engine: the plain twins of proto EngineInfo, EngineLoad and EngineStatus, where the
// meaning is written down.
//
//   RETURN_IF_ERROR(Validate(info));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace swiftcache::broker::membership {

/// 1 PiB, more than any engine has: bytes of all arenas add up without wrapping (see kMaxEngines).
inline constexpr int64_t kMaxArenaBytes = int64_t{1} << 50;

struct KvGeometry {
  int64_t num_layers = 0, num_kv_heads = 0, head_dim = 0;
  std::string kv_cache_dtype;
  int64_t block_tokens = 0, block_bytes = 0, num_blocks = 0;
  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

enum class EngineState { kStarting, kReady, kDraining, kStalled };

/// Lower case, for metrics and logs.
const char* StateName(EngineState state);

struct EngineInfo {
  std::string name, instance_id, model_name, address;
  KvGeometry kv;
  int64_t max_model_len_tokens = 0;
  std::string model_card_hash;
  EngineState state = EngineState::kStarting;
  // Of sharing; empty where the engine does not share.
  std::string lease_channel, node_id;
  int64_t page_bytes = 0, never_lent_blocks = 0;
  bool borrows = false;
  int64_t registration = 0;  // rises with each Register of an instance; 0: not numbered
  friend bool operator==(const EngineInfo&, const EngineInfo&) = default;
};

/// What an engine has lent to those of one model.
struct LeaseAccount {
  struct Ended {
    std::string reason;
    int64_t released = 0, fenced = 0;
    friend bool operator==(const Ended&, const Ended&) = default;
  };
  std::string borrower_model;
  int64_t lent_bytes = 0, lent_byte_seconds = 0, leases = 0;
  std::vector<Ended> ended;
  friend bool operator==(const LeaseAccount&, const LeaseAccount&) = default;
};

struct LoadReport {
  int64_t running_requests = 0, waiting_requests = 0, kv_blocks_used = 0, kv_blocks_cached = 0;
  int64_t progress = 0, still_micros = 0;
  int64_t prompt_tokens_computed = 0, prompt_tokens_local = 0, prompt_tokens_donor = 0;
  int64_t reclaims = 0, last_reclaim_micros = 0;
  int64_t saved_tokens = 0, again_for_loans_tokens = 0, again_for_losses_tokens = 0;
  std::vector<LeaseAccount> accounts;
  friend bool operator==(const LoadReport&, const LoadReport&) = default;
};

struct EngineStatus {
  EngineInfo info;
  LoadReport load;
  friend bool operator==(const EngineStatus&, const EngineStatus&) = default;
};

/// Checks what an engine says of itself, all of it, since all watchers are told. INVALID_ARGUMENT, naming field, value
/// found and value wanted: a text with other characters than letters, digits and "._:/@+-[]", or with too many;
/// block_bytes that disagree with the rest of the geometry; an arena above kMaxArenaBytes; a READY engine without
/// address; a lease channel without node and page size, or with control characters; a reserve larger than the arena.
absl::Status Validate(const EngineInfo& info);

}  // namespace swiftcache::broker::membership
