// SPDX-License-Identifier: Apache-2.0
// What a borrower keeps of one lease.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "engine/kv/sealed_memory.h"
#include "engine/transport/shm_socket.h"
#include "engine/transport/shm_staging_ring.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// Thread-safety: guarded by the lock of the ShmBorrower that made it, but for `spec`, and for `view` and what it shows
/// once the lease is open: they do not change until the end. Ownership: owns its mappings. Shared: by the table, the
/// channel and a thread that copies; the last of them unmaps.
struct ShmLease {
  struct StoreJob {
    Ticket ticket;
    int64_t offset = 0;  // in the lease
    const std::byte* from = nullptr;
    int64_t bytes = 0;
    absl::Time began;  // to cross the link
    absl::Time due;    // at the other end of it
  };
  enum class State { kOpening, kOpen, kEnded };  // ended: the channel is closed

  explicit ShmLease(OpenSpec wanted) : spec(std::move(wanted)) {}

  const OpenSpec spec;
  State state = State::kOpening;
  bool released = false;  // given back: the channel's end is no news
  bool closed = false;    // by its owner: nothing is told any more
  bool copying = false;   // a store's bytes, from the owner's memory
  int telling = 0;        // events under way

  std::shared_ptr<ShmSocket> socket;
  kv::Mapping staging;
  ShmStagingRing ring;
  kv::Mapping memory, generation;  // the donor's, read-only
  LeaseView view;                  // base is null until open

  std::deque<StoreJob> waiting;     // for room in the ring
  std::deque<StoreJob> unanswered;  // in the ring
};

}  // namespace swiftcache::engine::transport
