// SPDX-License-Identifier: Apache-2.0
// What a borrower keeps of one lease.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/backend/fence.h"
#include "engine/memory/sealed_memory.h"
#include "engine/transport/peer_memory.h"
#include "engine/transport/shm_message.h"
#include "engine/transport/shm_socket.h"
#include "engine/transport/shm_staging.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// A donor's memory, mapped. Thread-safety: a value. Ownership: owns the mappings that the view shows.
struct ShmMapped {
  memory::Mapping generation;  // read-only
  std::unique_ptr<MappedLease> memory;
  LeaseView view;  // base is null until the lease is open
};

/// Maps what a GRANT brought. INVALID_ARGUMENT: it is not what `wanted` says, or cannot be trusted to stay;
/// RESOURCE_EXHAUSTED: the kernel refuses.
absl::StatusOr<ShmMapped> MapGrant(const OpenSpec& wanted, const ShmGrantMessage& message,
                                   const std::vector<memory::UniqueFd>& fds, PeerMemory& memory);

/// Thread-safety: guarded by the lock of the ShmBorrower that made it, but for `spec`, and for `mapped` once the lease
/// is open: they do not change until the end. Shared: by the table, the channel and a thread that copies; the last of
/// them unmaps.
struct ShmLease {
  struct StoreJob {
    Ticket ticket;
    int64_t offset = 0;  // in the lease
    backend::DeviceAddress from;
    backend::Fence after;  // before which nothing is copied
    int64_t bytes = 0;
    int64_t staging_offset = 0;  // once it is in the ring
    absl::Time began;            // to cross the link
    absl::Time due;              // at the other end of it
  };
  enum class State { kOpening, kOpen, kEnded };  // ended: the channel is closed

  explicit ShmLease(OpenSpec wanted) : spec(std::move(wanted)) {}

  bool awaits_grant() const { return state == State::kOpening && !closed; }
  bool takes_stores() const { return state == State::kOpen && !released && !closed; }

  const OpenSpec spec;
  State state = State::kOpening;
  bool released = false;  // given back: the channel's end is no news
  bool closed = false;    // by its owner: nothing is told any more
  bool copying = false;   // a store's bytes, from the owner's memory
  bool sending = false;   // a store's message
  int telling = 0;        // events under way

  std::shared_ptr<ShmSocket> socket;
  std::shared_ptr<ShmStaging> staging;
  ShmMapped mapped;
  absl::Status unmappable;          // why what GRANT brought was not mapped
  std::deque<StoreJob> waiting;     // for room in the ring
  std::deque<StoreJob> unanswered;  // in the ring
};

}  // namespace swiftcache::engine::transport
