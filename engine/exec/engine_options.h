// SPDX-License-Identifier: Apache-2.0
// What an engine is to be: its memory, its limits, how it shares. Filled from flags, checked by CheckOptions
// (request_check.h).
//
//   EngineOptions options{.kv_cache_bytes = 64 * kMiB, .max_num_seqs = 32};
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/units.h"
#include "engine/backend/kv_layout.h"

namespace swiftcache::engine::exec {

/// How blocks in leases are read: streamed through local slots layer by layer, or where they are mapped. kAuto: in
/// place, but for leases behind a link that was measured and is slow (LeaseView::slow_link).
enum class StreamMode { kAuto, kLsc, kInPlace };

struct EngineOptions {
  std::optional<int64_t> kv_cache_bytes = std::nullopt;  // none: what the device has left (engine_memory.h)
  double gpu_memory_utilization = 0.9;  // of the device's memory, what all that is in use there may come to
  backend::KvDtype kv_cache_dtype = backend::KvDtype::kBf16;
  int64_t block_tokens = 16;
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  absl::Duration target_itl =
      absl::Milliseconds(200);       // fewer tokens of prompts where running streams would wait longer; zero: no target
  int64_t max_model_len_tokens = 0;  // 0: what the model allows
  absl::Duration max_tpot;           // no request whose decode bound (decode_bound.h) is longer; zero: any
  int64_t max_waiting_requests = 1024;
  bool enable_prefix_caching = true;
  std::vector<int32_t> eos_ids = {};
  // Sharing of KV memory with other engines.
  bool share = false;
  bool borrow = true;                                                           // where it shares
  bool may_borrow() const { return share && borrow && enable_prefix_caching; }  // only what the cache knows is spilled
  StreamMode stream = StreamMode::kAuto;
  bool scrub_on_return = true;
  absl::Duration revoke_deadline = absl::Milliseconds(50);  // within which a donor wants a lease back
  int64_t max_tokens_on_leases = 0;  // of a step that reads leases, beside what a layer's time allows; 0: no such limit
  absl::Duration lease_patience = absl::Seconds(10);  // of a request that own and leased memory cannot hold yet
  std::function<void()> at_loop_start = {};           // the loop's thread calls it first; to lower its priority, say
  /// The loop's thread calls it once, where the device is lost; must not block. Every request has been ended by then.
  std::function<void(const absl::Status&)> on_device_lost = {};
};

}  // namespace swiftcache::engine::exec
