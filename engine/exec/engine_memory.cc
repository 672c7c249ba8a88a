// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/engine_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "common/log/log.h"
#include "engine/exec/request_check.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kUsualBytes = kGiB;  // where neither flag nor device says how much

absl::StatusOr<int64_t> BytesAsked(int64_t bytes, int64_t block_bytes) {
  if (bytes >= block_bytes) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("--kv_cache_bytes is ", bytes, "; one block of KV takes ", block_bytes,
                                                 " bytes: give at least that"));
}

absl::StatusOr<int64_t> BytesLeft(const backend::DeviceMemory& memory, double utilization, int64_t block_bytes) {
  const auto allowed = static_cast<int64_t>(static_cast<double>(memory.total_bytes) * utilization);
  const int64_t used = memory.total_bytes - memory.free_bytes;
  const int64_t left = std::max<int64_t>(0, allowed - used);
  if (left >= block_bytes) return left;
  return absl::ResourceExhaustedError(absl::StrCat(
      "--gpu_memory_utilization is ", utilization, ", which allows ", allowed, " of the device's ", memory.total_bytes,
      " bytes of memory", memory.limited_by.empty() ? "" : absl::StrCat(" (", memory.limited_by, ")"), "; ", used,
      " are in use, by the weights and by others, which leaves ", left, " for KV, and one block takes ", block_bytes,
      ": raise it, or free memory on the device"));
}

// Alone, one sequence must always fit into own memory: that is what progress rests on (Scheduler). Who borrows may
// lease what is missing.
int64_t MaxModelLen(const EngineOptions& options, const models::ModelGeometry& geometry, int64_t num_blocks) {
  const int64_t wanted = WantedModelLen(options, geometry), held = num_blocks * options.block_tokens;
  if (options.may_borrow() || wanted <= held) return wanted;
  LOG(WARNING) << "max_model_len is lowered from " << wanted << " to the " << held << " tokens that KV memory holds";
  return held;
}

}  // namespace

int64_t WantedModelLen(const EngineOptions& options, const models::ModelGeometry& geometry) {
  if (options.max_model_len_tokens == 0) return geometry.max_context_tokens;
  return std::min(geometry.max_context_tokens, options.max_model_len_tokens);
}

backend::KvLayout KvLayoutOf(const EngineOptions& options, const models::ModelGeometry& geometry) {
  return {.num_layers = geometry.num_layers,
          .num_kv_heads = geometry.num_kv_heads,
          .head_dim = geometry.head_dim,
          .block_tokens = options.block_tokens,
          .dtype = options.kv_cache_dtype};
}

absl::StatusOr<int64_t> KvCacheBytes(const EngineOptions& options, const backend::KvLayout& layout,
                                     const backend::Device& device) {
  if (options.kv_cache_bytes) return BytesAsked(*options.kv_cache_bytes, layout.block_bytes());
  const std::optional<backend::DeviceMemory> memory = device.memory();
  if (!memory) return BytesAsked(kUsualBytes, layout.block_bytes());
  return BytesLeft(*memory, options.gpu_memory_utilization, layout.block_bytes());
}

absl::StatusOr<EngineMemory> CreateEngineMemory(const EngineOptions& options, const models::ModelGeometry& geometry,
                                                backend::Device& device) {
  RETURN_IF_ERROR(CheckOptions(options, geometry));
  EngineMemory memory{.layout = KvLayoutOf(options, geometry)};
  const int64_t block_bytes = memory.layout.block_bytes();
  ASSIGN_OR_RETURN(const int64_t bytes, KvCacheBytes(options, memory.layout, device));
  ASSIGN_OR_RETURN(memory.kv,
                   device.CreateKvMemory({.bytes = bytes, .block_bytes = block_bytes, .shared = options.share}));
  memory.max_model_len_tokens = MaxModelLen(options, geometry, memory.num_blocks());
  return memory;
}

}  // namespace swiftcache::engine::exec
