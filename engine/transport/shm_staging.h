// SPDX-License-Identifier: Apache-2.0
// A borrower's staging memory: where stores to one donor wait until it has copied them. A ring of runs, and behind it
// the word that tells the donor how much was read of what it lends.
//
//   if (auto offset = staging->ring.Push(bytes)) status = memory.CopyOut(*staging->memory, *offset, from, bytes, after);
//   ... staging->ring.Free(*offset);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "engine/transport/peer_memory.h"

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

// Layout of memory that processes share, n bytes of pages:  0 the ring, n - one page long    n - 8 u64 bytes read, counting up; what
// lies between them is nothing.

/// The word of a staging memory of `bytes`. Foreign where it is a peer's: any number, at any time.
inline std::atomic<uint64_t>* ShmReadsWord(std::byte* base, int64_t bytes) {
  static_assert(sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free);
  return reinterpret_cast<std::atomic<uint64_t>*>(base + bytes - 8);
}

/// Thread-safety: none, but for the memory. Ownership: owns it. Shared: by the leases of one donor, the last of which
/// frees it.
struct ShmStaging {
  ShmStaging(std::unique_ptr<OwnStaging> memory, int64_t ring_bytes)
      : memory(std::move(memory)), ring(ring_bytes), ring_bytes(ring_bytes) {}

  const std::unique_ptr<OwnStaging> memory;
  ShmStagingRing ring;
  const int64_t ring_bytes;
};

}  // namespace swiftcache::engine::transport
