// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's headers have it, older ones may not
#endif

namespace swiftcache::engine::kv {
namespace {

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

// Faults every page in. Falls back to touching where the kernel cannot do it in one call.
absl::Status Populate(std::byte* base, int64_t bytes) {
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return Exhausted(bytes, absl::StrCat("the kernel refused them (", std::strerror(errno), ")"));
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t offset = 0; offset < bytes; offset += page)
    *static_cast<volatile std::byte*>(base + offset) = std::byte{0};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Arena> Arena::Create(const Options& options) {
  RETURN_IF_ERROR(CheckSize(options));
  const int64_t bytes = options.bytes / options.block_bytes * options.block_bytes;
  const MemoryHeadroom room = ReadMemoryHeadroom(options.memory);
  if (bytes > room.bytes) return Exhausted(bytes, absl::StrCat(room.bytes, " are available (", room.limited_by, ")"));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return Exhausted(bytes, absl::StrCat("the kernel refused the mapping (", std::strerror(errno), ")"));
  }
  Arena arena(static_cast<std::byte*>(base), bytes, options.block_bytes);
  (void)madvise(base, bytes, MADV_HUGEPAGE);  // a wish: without huge pages everything works, more slowly
  RETURN_IF_ERROR(Populate(arena.base_, bytes));
  return arena;
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(block_bytes_, other.block_bytes_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

}  // namespace swiftcache::engine::kv
