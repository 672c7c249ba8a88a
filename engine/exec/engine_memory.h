// SPDX-License-Identifier: Apache-2.0
// An engine's KV memory: how large it shall be, and what it then holds.
//
//   const backend::KvLayout layout = KvLayoutOf(options, geometry);     // before there are weights
//   ...the device gets its weights...
//   ASSIGN_OR_RETURN(EngineMemory memory, CreateEngineMemory(options, geometry, device));
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/device.h"
#include "engine/backend/kv_layout.h"
#include "engine/backend/kv_memory.h"
#include "engine/exec/engine_options.h"
#include "engine/models/model.h"

namespace swiftcache::engine::exec {

/// Thread-safety: a move-only value. Ownership: owns the memory. Units: tokens.
struct EngineMemory {
  std::unique_ptr<backend::KvMemory> kv;
  backend::KvLayout layout;
  int64_t num_blocks() const { return kv->bytes() / layout.block_bytes(); }
  int64_t max_model_len_tokens = 0;  // what model, option and KV memory allow
};

/// Of prompt and output: what model and option allow.
int64_t WantedModelLen(const EngineOptions& options, const models::ModelGeometry& geometry);

backend::KvLayout KvLayoutOf(const EngineOptions& options, const models::ModelGeometry& geometry);

/// Bytes that KV memory shall have: options.kv_cache_bytes; where that is not given, gpu_memory_utilization of the
/// device's memory, less what is in use there; on a device that does not say how much it has, 1 GiB. INVALID_ARGUMENT:
/// less than a block was asked for. RESOURCE_EXHAUSTED: less than a block is left. Both name flag, value and remedy.
absl::StatusOr<int64_t> KvCacheBytes(const EngineOptions& options, const backend::KvLayout& layout,
                                     const backend::Device& device);

/// KV memory as large as KvCacheBytes says now: what it leaves to weights and activations is what they took before.
/// Errors: KvCacheBytes'. INVALID_ARGUMENT: an option out of range; names the flag and the remedy. RESOURCE_EXHAUSTED:
/// so much is not to be had (it is taken here, so never a SIGBUS later).
absl::StatusOr<EngineMemory> CreateEngineMemory(const EngineOptions& options, const models::ModelGeometry& geometry,
                                                backend::Device& device);

}  // namespace swiftcache::engine::exec
