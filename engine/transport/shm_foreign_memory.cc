// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_foreign_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace swiftcache::engine::transport {
namespace {

constexpr int64_t kStatBlock = 512;  // what st_blocks counts

// FUTURE_WRITE also forbids holes; memory without its pages would get them at our first read, at our cost.
absl::Status CheckForeignMemory(int fd, int64_t offset, int64_t bytes) {
  struct statfs file_system = {};
  struct stat file = {};
  if (fstatfs(fd, &file_system) != 0 || fstat(fd, &file) != 0 || file_system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("a peer sent a descriptor that is not shared memory");
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE;
  if (seals < 0 || (seals & kWanted) != kWanted) {
    return absl::InvalidArgumentError(absl::StrCat("a peer sent memory with seals ", seals, "; ", kWanted,
                                                   " (against shrinking and holes) are wanted"));
  }
  if (file.st_size < offset + bytes || file.st_blocks < file.st_size / kStatBlock) {
    return absl::InvalidArgumentError(absl::StrCat("a peer sent memory of ", file.st_size, " bytes with pages for ",
                                                   file.st_blocks * kStatBlock, "; ", bytes, " at ", offset,
                                                   " are wanted"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MapForeignMemory(int fd, int64_t offset, int64_t bytes, std::byte* at) {
  RETURN_IF_ERROR(CheckForeignMemory(fd, offset, bytes));
  if (mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the kernel refused to map ", bytes, " bytes of a peer's memory (", std::strerror(errno), ")"));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::transport
