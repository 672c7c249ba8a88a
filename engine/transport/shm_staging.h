// SPDX-License-Identifier: Apache-2.0
// A borrower's staging memory: where stores to one donor wait until he has copied them. A ring of runs.
//
//   if (auto offset = staging->Push(bytes)) std::memcpy(staging->base() + *offset, from, bytes);
//   ... staging->Free(*offset);
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/kv/sealed_memory.h"

namespace swiftcache::engine::transport {

/// Which parts of a ring are in use. Runs are freed in any order, and come back in the order in which they were taken.
/// Thread-safety: none. Errors: none. Units: bytes.
class ShmStagingRing {
 public:
  explicit ShmStagingRing(int64_t bytes) : bytes_(bytes) {}
  /// A free run of `bytes` that does not wrap, or nothing where there is none until a Free. REQUIRES: bytes > 0.
  std::optional<int64_t> Push(int64_t bytes);
  bool HasRoom(int64_t bytes) const { return Find(bytes).has_value(); }
  /// REQUIRES: Push returned it, and it was not freed since.
  void Free(int64_t offset);

 private:
  struct Run {
    int64_t begin, end;
    bool free = false;
  };
  std::optional<int64_t> Find(int64_t bytes) const;

  int64_t bytes_;
  std::deque<Run> runs_;  // oldest first
};

/// Thread-safety: none, but for base, bytes and fd, which do not change. Ownership: owns the memory. Shared: by the
/// leases of one donor, the last of which frees it.
struct ShmStaging {
  /// RESOURCE_EXHAUSTED, FAILED_PRECONDITION: as kv::CreateSealedMemory says. REQUIRES: `bytes` are pages.
  static absl::StatusOr<std::shared_ptr<ShmStaging>> Create(int64_t bytes);

  kv::Mapping memory;
  kv::UniqueFd fd;  // read-only
  ShmStagingRing ring;
};

}  // namespace swiftcache::engine::transport
