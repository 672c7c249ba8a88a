// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kHugePageBytes = 2 * kMiB;
constexpr int64_t kChunkBytes = 32 * kMiB;
constexpr int64_t kSlackBytes = 4 * kAlignment;  // kernels load whole vectors past the last element

}  // namespace

absl::StatusOr<HostMemory> HostMemory::Allocate(int64_t bytes) {
  const int64_t align = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const auto mapping_bytes = CheckedAdd(bytes, align + kSlackBytes);
  void* mapping = MAP_FAILED;
  if (mapping_bytes) {
    mapping = mmap(nullptr, *mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("the CPU backend wants ", bytes,
                                                     " bytes of memory: ", strerror(errno),
                                                     "; use a smaller model or batch, or free memory"));
  }
  if (align) madvise(mapping, *mapping_bytes, MADV_HUGEPAGE);  // a wish: small pages work too
  HostMemory memory;
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = *mapping_bytes;
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapping);
  memory.data_ = static_cast<std::byte*>(mapping) + (align ? (align - start % align) % align : 0);
  memory.bytes_ = bytes;
  return memory;
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostMemory::~HostMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

absl::StatusOr<std::byte*> WeightArena::Allocate(int64_t bytes) {
  const int64_t rounded = CeilDiv(bytes, kAlignment) * kAlignment;
  if (chunks_.empty() || used_ + rounded > chunks_.back().bytes()) {
    ASSIGN_OR_RETURN(HostMemory chunk, HostMemory::Allocate(std::max(rounded, kChunkBytes)));
    chunks_.push_back(std::move(chunk));
    used_ = 0;
  }
  std::byte* result = chunks_.back().data() + used_;
  used_ += rounded;
  return result;
}

}  // namespace swiftcache::engine::backend::cpu
