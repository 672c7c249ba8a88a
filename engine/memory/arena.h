// SPDX-License-Identifier: Apache-2.0
// An engine's KV memory: one run of addresses, cut into blocks, reserved and touched before the first request.
//
//   ASSIGN_OR_RETURN(Arena arena, Arena::Create({.bytes = options.kv_cache_bytes, .block_bytes = layout.block_bytes(),
//                                                .shared = true}));
//   std::byte* layer0 = arena.Address(place.index);
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/memory/memory_limits.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::memory {

/// A part of a shared arena: what lies at [offset, offset + bytes) is the whole of `fd`, which is read-only for good.
struct ArenaChunk {
  int fd = -1;  // the arena's
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Block i lies at [i * block_bytes, (i + 1) * block_bytes): inside it, KvLayout rules. Pages are huge where the kernel
/// gives them. Zeroed at the start. A shared arena lies in sealed memory of its own making, chunk after chunk; a block
/// may straddle two chunks, since their addresses are adjacent. Who is shown a chunk sees all of it, and for as long as
/// it likes. Of an arena that is not shared parts can be shown, one by one (Show), until they are renewed (Renew).
/// Thread-safety: addresses are immutable, bytes are the users' business. Ownership: move-only, owns the mapping.
/// Errors: Create, Show and Renew only; else every page is there, so neither SIGBUS nor a failing fault can come.
/// Units: bytes.
class Arena {
 public:
  /// At most so many chunks: their descriptors, and one more, fit into one message over a Unix socket.
  static constexpr int64_t kMaxChunks = 240;
  struct Options {
    int64_t bytes = 0;        // whole blocks of it are used
    int64_t block_bytes = 0;  // > 0
    MemorySources memory = {};
    bool shared = false;               // lies in chunks, which others may be shown
    int64_t chunk_bytes = 16ll << 20;  // at least; a multiple of the page
  };
  /// INVALID_ARGUMENT: less than one block, or more blocks than a BlockId can name. RESOURCE_EXHAUSTED: more than is to
  /// be had. Both name --kv_cache_bytes, wanted and found. FAILED_PRECONDITION: shared, on a kernel that cannot seal.
  static absl::StatusOr<Arena> Create(const Options& options);

  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_bytes() const { return block_bytes_; }
  static int64_t page_bytes();
  /// Of the arena's block `index`. REQUIRES: 0 <= index < num_blocks().
  std::byte* Address(int64_t index) const { return base() + index * block_bytes_; }

  std::byte* base() const { return memory_.base(); }
  /// What is mapped: the blocks and the rest of the last page.
  int64_t mapped_bytes() const { return memory_.bytes(); }
  /// In order of their offsets, without gaps, all of one size but the last; none where the arena is not shared.
  const std::vector<ArenaChunk>& chunks() const { return chunks_; }

  // Both replace what lies in a part by zeroed memory; after an error nobody may touch it until Renew has succeeded. Who
  // was shown what lay there before goes on seeing that. REQUIRES: the arena is not shared; whole pages, in use by
  // nobody. Parts that do not overlap may be replaced at the same time.
  /// By sealed memory, of which the descriptor, read-only for good, is the whole. RESOURCE_EXHAUSTED.
  absl::StatusOr<UniqueFd> Show(int64_t offset, int64_t bytes);
  /// By memory that nobody else sees. RESOURCE_EXHAUSTED: so much is not to be had now.
  absl::Status Renew(int64_t offset, int64_t bytes);

 private:
  Arena(Mapping memory, const Options& options, int64_t num_blocks)
      : memory_(std::move(memory)),
        sources_(options.memory),
        block_bytes_(options.block_bytes),
        num_blocks_(num_blocks) {}
  absl::Status AddChunk(int64_t bytes);
  absl::Status TakePrivate(int64_t offset, int64_t bytes);
  void CheckPart(int64_t offset, int64_t bytes) const;

  Mapping memory_;
  MemorySources sources_;
  std::vector<UniqueFd> fds_;
  std::vector<ArenaChunk> chunks_;
  int64_t block_bytes_;
  int64_t num_blocks_;
};

}  // namespace swiftcache::engine::memory
