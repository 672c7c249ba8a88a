// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's headers have it, older ones may not
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace swiftcache::engine::memory {
namespace {

constexpr int64_t kHugePage = 2 * kMiB;

absl::Status Refused(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("the kernel refused ", what, " (", std::strerror(error), ")"));
}

// Many machines give shared memory huge pages on demand alone: a small page of each is taken, then made huge. A wish:
// without them everything works, more slowly.
void TakeHugePages(std::byte* at, int64_t bytes) {
  (void)madvise(at, bytes, MADV_HUGEPAGE);
  for (int64_t offset = 0; offset + kHugePage <= bytes; offset += kHugePage) {
    if (madvise(at + offset, sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) != 0) break;
    if (madvise(at + offset, kHugePage, MADV_COLLAPSE) != 0) break;
  }
  (void)madvise(at, bytes, MADV_POPULATE_WRITE);
}

absl::Status MapFile(int fd, std::byte* at, int64_t bytes) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) return absl::OkStatus();
  return Refused("a mapping of shared memory", errno);
}

// Pages of a mapping may be huge, those of fallocate never are: hence they are taken first, and fallocate then says
// whether everything is there. madvise reports a full file system as an error, so that no signal can come. Where `at` is
// not on a huge page's border the pages are taken through another mapping that is: whoever maps the file so has them.
absl::Status TakePages(int fd, std::byte* at, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % kHugePage == 0) {
    TakeHugePages(at, bytes);
  } else if (bytes >= kHugePage) {
    ASSIGN_OR_RETURN(const Mapping window, Mapping::Reserve(bytes));
    RETURN_IF_ERROR(MapFile(fd, window.base(), bytes));
    TakeHugePages(window.base(), bytes);
  }
  int result = 0;
  do {
    result = fallocate(fd, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return Refused("shared memory", errno);
  return Populate(at, bytes);
}

// The owner's mapping stays writable because it is older than the seal.
absl::Status Seal(int fd) {
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this kernel cannot seal memory against writers (", std::strerror(errno),
                   "); sharing KV memory wants Linux 5.1 or newer: run without leases, or update the kernel"));
}

absl::StatusOr<UniqueFd> ReopenReadOnly(int fd) {
  UniqueFd reopened(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.ok()) return Refused("a read-only descriptor of shared memory through /proc/self/fd", errno);
  return reopened;
}

}  // namespace

absl::StatusOr<Mapping> Mapping::Reserve(int64_t bytes, int64_t past_border) {
  const int64_t wide = bytes + kHugePage;
  void* const start = mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return Refused("the addresses", errno);
  std::byte* const first = static_cast<std::byte*>(start);
  const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % kHugePage);
  const int64_t skip = (past_border % kHugePage + kHugePage - at) % kHugePage;
  if (skip > 0) munmap(first, skip);
  if (wide - skip > bytes) munmap(first + skip + bytes, wide - skip - bytes);
  return Mapping(first + skip, bytes);
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

absl::StatusOr<UniqueFd> CreateSealedMemory(const char* name, std::byte* at, int64_t bytes) {
  const UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok()) return Refused("a descriptor for shared memory", errno);
  if (ftruncate(fd.get(), bytes) != 0) return Refused("the size of shared memory", errno);
  RETURN_IF_ERROR(MapFile(fd.get(), at, bytes));
  RETURN_IF_ERROR(TakePages(fd.get(), at, bytes));
  RETURN_IF_ERROR(Seal(fd.get()));
  return ReopenReadOnly(fd.get());
}

absl::Status MapPrivateMemory(std::byte* at, int64_t bytes) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return Refused("the mapping", errno);
  }
  (void)madvise(at, bytes, MADV_HUGEPAGE);  // a wish: without huge pages everything works, more slowly
  return absl::OkStatus();
}

// Falls back to touching where the kernel cannot do it in one call.
absl::Status Populate(std::byte* base, int64_t bytes) {
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return Refused("the pages", errno);
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t offset = 0; offset < bytes; offset += page) {
    *static_cast<volatile std::byte*>(base + offset) = std::byte{0};
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::memory
