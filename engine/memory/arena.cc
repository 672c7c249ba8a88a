// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "glog/logging.h"

namespace swiftcache::engine::memory {
namespace {

constexpr int64_t kChunkUnit = 2 * kMiB;          // a huge page
constexpr int64_t kMostBytes = int64_t{1} << 62;  // room to round up

absl::Status CheckSize(const Arena::Options& options) {
  CHECK_GT(options.block_bytes, 0);
  const int64_t blocks = options.bytes < 0 ? 0 : options.bytes / options.block_bytes;
  if (blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--kv_cache_bytes is ", options.bytes, "; one block of KV takes ",
                                                   options.block_bytes, " bytes: give at least that"));
  }
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("--kv_cache_bytes is ", options.bytes, ", which is ", blocks,
                                                   " blocks; at most 2147483647 can be named: give less, or raise"
                                                   " --block_tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckHeadroom(const MemorySources& sources, int64_t bytes) {
  const MemoryHeadroom room = ReadMemoryHeadroom(sources);
  if (bytes <= room.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(room.bytes, " are available (", room.limited_by, ")"));
}

// One message for whatever is not to be had.
absl::Status Explain(const absl::Status& refused, int64_t wanted) {
  if (refused.code() != absl::StatusCode::kResourceExhausted) return refused;
  return absl::ResourceExhaustedError(absl::StrCat("--kv_cache_bytes wants ", wanted, " bytes of memory; ",
                                                   refused.message(), ": lower --kv_cache_bytes or free memory"));
}

int64_t RoundUp(int64_t bytes, int64_t unit) { return CeilDiv(bytes, unit) * unit; }

// As asked, or as large as the limit on their number demands.
int64_t ChunkBytes(const Arena::Options& options, int64_t mapped_bytes) {
  const int64_t least = RoundUp(CeilDiv(mapped_bytes, Arena::kMaxChunks), kChunkUnit);
  return mapped_bytes > Arena::kMaxChunks * options.chunk_bytes ? least : options.chunk_bytes;
}

}  // namespace

int64_t Arena::page_bytes() { return sysconf(_SC_PAGESIZE); }

absl::StatusOr<Arena> Arena::Create(const Options& options) {
  RETURN_IF_ERROR(CheckSize(options));
  const int64_t page = page_bytes();
  CHECK_EQ(options.chunk_bytes % page, 0);
  const int64_t num_blocks = options.bytes / options.block_bytes;
  const int64_t bytes = RoundUp(std::min(num_blocks * options.block_bytes, kMostBytes), page);
  if (const absl::Status room = CheckHeadroom(options.memory, bytes); !room.ok()) return Explain(room, bytes);
  absl::StatusOr<Mapping> memory = Mapping::Reserve(bytes);
  if (!memory.ok()) return Explain(memory.status(), bytes);
  Arena arena(*std::move(memory), options, num_blocks);
  if (!options.shared) {
    const absl::Status taken = arena.TakePrivate(0, bytes);
    if (!taken.ok()) return Explain(taken, bytes);
    return arena;
  }
  const int64_t chunk_bytes = ChunkBytes(options, bytes);
  for (int64_t offset = 0; offset < bytes; offset += chunk_bytes) {
    const absl::Status added = arena.AddChunk(std::min(chunk_bytes, bytes - offset));
    if (!added.ok()) return Explain(added, bytes);
  }
  return arena;
}

absl::StatusOr<UniqueFd> Arena::Show(int64_t offset, int64_t bytes) {
  CheckPart(offset, bytes);
  return CreateSealedMemory("swiftcache-kv", base() + offset, bytes);
}

absl::Status Arena::Renew(int64_t offset, int64_t bytes) {
  CheckPart(offset, bytes);
  return TakePrivate(offset, bytes);
}

// What is mapped there goes first: where nobody else has it mapped, as much is free then.
absl::Status Arena::TakePrivate(int64_t offset, int64_t bytes) {
  RETURN_IF_ERROR(MapPrivateMemory(base() + offset, bytes));
  RETURN_IF_ERROR(CheckHeadroom(sources_, bytes));
  return Populate(base() + offset, bytes);
}

void Arena::CheckPart(int64_t offset, int64_t bytes) const {
  CHECK(chunks_.empty() && offset >= 0 && bytes > 0 && bytes <= mapped_bytes() && offset <= mapped_bytes() - bytes &&
        offset % page_bytes() == 0 && bytes % page_bytes() == 0)
      << bytes << " bytes at " << offset << " of " << mapped_bytes() << " in " << chunks_.size() << " chunks";
}

absl::Status Arena::AddChunk(int64_t bytes) {
  const int64_t offset = chunks_.empty() ? 0 : chunks_.back().offset + chunks_.back().bytes;
  ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemory("swiftcache-kv", base() + offset, bytes));
  chunks_.push_back({.fd = fd.get(), .offset = offset, .bytes = bytes});
  fds_.push_back(std::move(fd));
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::memory
