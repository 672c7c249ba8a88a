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

absl::Status Exhausted(int64_t wanted, const std::string& found) {
  return absl::ResourceExhaustedError(absl::StrCat("--kv_cache_bytes wants ", wanted, " bytes of memory; ", found,
                                                   ": lower --kv_cache_bytes or free memory"));
}

// One message for whatever the kernel refuses.
absl::Status Explain(const absl::Status& refused, int64_t wanted) {
  if (refused.code() != absl::StatusCode::kResourceExhausted) return refused;
  return Exhausted(wanted, std::string(refused.message()));
}

absl::StatusOr<Mapping> MapPrivate(int64_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("the kernel refused the mapping (", std::strerror(errno), ")"));
  }
  Mapping mapping(static_cast<std::byte*>(base), bytes);
  (void)madvise(base, bytes, MADV_HUGEPAGE);  // a wish: without huge pages everything works, more slowly
  RETURN_IF_ERROR(Populate(mapping.base(), bytes));
  return mapping;
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
  const MemoryHeadroom room = ReadMemoryHeadroom(options.memory);
  if (bytes > room.bytes) return Exhausted(bytes, absl::StrCat(room.bytes, " are available (", room.limited_by, ")"));
  absl::StatusOr<Mapping> memory = options.shared ? Mapping::Reserve(bytes) : MapPrivate(bytes);
  if (!memory.ok()) return Explain(memory.status(), bytes);
  Arena arena(*std::move(memory), options.block_bytes, num_blocks);
  if (!options.shared) return arena;
  const int64_t chunk_bytes = ChunkBytes(options, bytes);
  for (int64_t offset = 0; offset < bytes; offset += chunk_bytes) {
    const absl::Status added = arena.AddChunk(std::min(chunk_bytes, bytes - offset));
    if (!added.ok()) return Explain(added, bytes);
  }
  return arena;
}

absl::Status Arena::AddChunk(int64_t bytes) {
  const int64_t offset = chunks_.empty() ? 0 : chunks_.back().offset + chunks_.back().bytes;
  ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemory("swiftcache-kv", base() + offset, bytes));
  chunks_.push_back({.fd = fd.get(), .offset = offset, .bytes = bytes});
  fds_.push_back(std::move(fd));
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::memory
