// SPDX-License-Identifier: Apache-2.0
// An engine's KV memory: one mapping, cut into blocks, reserved and touched before the first request.
//
//   ASSIGN_OR_RETURN(Arena arena, Arena::Create({.bytes = options.kv_cache_bytes, .block_bytes =
//   layout.block_bytes()})); std::byte* layer0 = arena.Address(block);
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/kv/block.h"
#include "engine/kv/memory_limits.h"

namespace swiftcache::engine::kv {

/// Block i lies at [i * block_bytes, (i + 1) * block_bytes): inside it, KvLayout rules. Pages are huge where the kernel
/// gives them. Zeroed at the start.
/// Thread-safety: addresses are immutable, bytes are the users' business. Ownership: move-only, owns the mapping.
/// Errors: Create only; afterwards every page is there, so neither SIGBUS nor a failing fault can come. Units: bytes.
class Arena {
 public:
  struct Options {
    int64_t bytes = 0;        // whole blocks of it are used
    int64_t block_bytes = 0;  // > 0
    MemorySources memory = {};
  };
  /// INVALID_ARGUMENT: less than one block, or more blocks than a BlockId can name. RESOURCE_EXHAUSTED: more than is to
  /// be had. Both name --kv_cache_bytes, wanted and found.
  static absl::StatusOr<Arena> Create(const Options& options);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  int64_t num_blocks() const { return mapped_bytes_ / block_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }
  /// REQUIRES: 0 <= id < num_blocks().
  std::byte* Address(BlockId id) const { return base_ + id.value() * block_bytes_; }

 private:
  Arena(std::byte* base, int64_t mapped_bytes, int64_t block_bytes)
      : base_(base), mapped_bytes_(mapped_bytes), block_bytes_(block_bytes) {}

  std::byte* base_ = nullptr;
  int64_t mapped_bytes_ = 0;
  int64_t block_bytes_ = 1;
};

}  // namespace swiftcache::engine::kv
