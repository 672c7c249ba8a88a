// SPDX-License-Identifier: Apache-2.0
// What transports between processes of one machine differ in: how granted memory is shown to another process, how that
// one maps it, and who copies. Sockets, messages, generation words and the order of things are the same for all of them
// (shm_message.h), and know memory by these classes only.
//
//   donor:     ASSIGN_OR_RETURN(ShownMemory shown, memory.Show(offset, bytes));            // into GRANT
//              ASSIGN_OR_RETURN(auto staging, memory.MapStaging(hello.staging_bytes, fds));
//              RETURN_IF_ERROR(memory.CopyIn(offset, *staging, store.staging_offset, store.bytes));
//   borrower:  ASSIGN_OR_RETURN(auto staging, memory.CreateStaging(ring_bytes));           // into HELLO
//              ASSIGN_OR_RETURN(auto mapped, memory.MapLease(bytes, pieces, fds));
//              RETURN_IF_ERROR(memory.CopyOut(*staging, staging_offset, from, bytes, after));
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "engine/backend/device_address.h"
#include "engine/backend/fence.h"
#include "engine/memory/sealed_memory.h"
#include "engine/transport/shm_message.h"
#include "engine/transport/shm_throttle.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

class ShmBorrower;

/// A part of the arena, as a GRANT shows it.
struct ShownMemory {
  std::vector<ShmPiece> pieces;
  std::vector<int> fds;                // of each piece
  std::vector<memory::UniqueFd> kept;  // those of them that nobody else keeps open
};

/// A lease's memory at its borrower; unmapped at the end. Thread-safety: immutable.
class MappedLease {
 public:
  virtual ~MappedLease() = default;
  virtual backend::DeviceAddress base() const = 0;
};

/// A borrower's staging memory, which its stores wait in: room for a ring, and a word that says how much the borrower
/// has read. Thread-safety: immutable, but for the word.
class OwnStaging {
 public:
  virtual ~OwnStaging() = default;
  /// Of the HELLO that shows it; at least what was asked for.
  virtual int64_t bytes() const = 0;
  virtual std::vector<int> fds() const = 0;
  virtual std::atomic<uint64_t>* reads() const = 0;
};

/// The same at the donor: foreign bytes, at any time others.
class PeerStaging {
 public:
  virtual ~PeerStaging() = default;
  virtual int64_t bytes() const = 0;
  virtual uint64_t reads() const = 0;
};

/// A load under way. Thread-safety: safe. Ownership: borrows its loader. Errors: none; what could not be had is lost.
class PendingLoad {
 public:
  virtual ~PendingLoad() = default;
  /// Passes when the bytes are where they were to be, or are lost.
  virtual backend::Fence Arrival() const = 0;
  /// The leases that Transport::Await names; none: it is not known yet.
  virtual std::optional<std::vector<kv::LeaseId>> Lost() const = 0;
  /// Waits until it is known.
  virtual std::vector<kv::LeaseId> Await() const = 0;
};

/// Brings pieces of leases into local memory, and knows which of them can be trusted. Thread-safety: safe. Ownership:
/// outlives what it began. Errors: none.
class LeaseLoader {
 public:
  virtual ~LeaseLoader() = default;
  /// Writes nothing before `after` has passed. Shared: by the asker, fences and who copies.
  virtual std::shared_ptr<const PendingLoad> Begin(std::vector<LoadPiece> pieces, const backend::Fence& after) = 0;
  virtual void AddStats(TransportStats& stats) const = 0;
  /// Joins; loads that have not begun lose all their leases.
  virtual void Stop() = 0;
};

/// An engine's arena and those of its peers. Thread-safety: safe. Ownership: borrows arena and device, which outlive all
/// that it made; descriptors are lent for the call. Errors: after an error nothing is under way, mapped or open of what
/// the call was to do. INVALID_ARGUMENT: a peer's bytes or descriptors are not what they must be. Units: bytes.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // Of who lends.
  /// FAILED_PRECONDITION: this arena cannot be shown.
  virtual absl::Status CheckLendable() const = 0;
  virtual int64_t arena_bytes() const = 0;
  virtual absl::StatusOr<ShownMemory> Show(int64_t offset, int64_t bytes) const = 0;
  virtual size_t num_staging_fds() const = 0;
  /// REQUIRES: as many descriptors, bytes > 0.
  virtual absl::StatusOr<std::unique_ptr<PeerStaging>> MapStaging(int64_t bytes,
                                                                  std::span<const memory::UniqueFd> fds) = 0;
  /// From staging memory to the arena: done when it returns. REQUIRES: inside both, bytes <= most_bytes_a_copy().
  virtual absl::Status CopyIn(int64_t offset, const PeerStaging& from, int64_t staging_offset, int64_t bytes) = 0;

  // Transport's.
  virtual bool exchanges() const { return false; }
  virtual absl::Status PrepareToLend(int64_t offset, int64_t bytes) { return absl::OkStatus(); }
  virtual absl::Status Exchange(int64_t offset, int64_t bytes) { return absl::OkStatus(); }

  // Of who borrows.
  virtual absl::StatusOr<std::unique_ptr<OwnStaging>> CreateStaging(int64_t ring_bytes) = 0;
  /// From local memory to staging memory, once `after` has passed: done when it returns. REQUIRES: as CopyIn.
  virtual absl::Status CopyOut(OwnStaging& to, int64_t staging_offset, backend::DeviceAddress from, int64_t bytes,
                               const backend::Fence& after) = 0;
  /// INVALID_ARGUMENT: the pieces do not make up the `lease_bytes` that were wanted.
  virtual absl::Status CheckGrant(const ShmGrantMessage& message, int64_t lease_bytes) const = 0;
  /// REQUIRES: CheckGrant, a descriptor for each piece.
  virtual absl::StatusOr<std::unique_ptr<MappedLease>> MapLease(int64_t lease_bytes, std::span<const ShmPiece> pieces,
                                                                std::span<const memory::UniqueFd> fds) = 0;
  /// Whether what is read in place in a lease comes over a link, and not as own memory does.
  virtual bool reads_cross_link() const = 0;
  /// Transport's: measured with memory of this lease, unless `donor`'s was measured a short while ago. By one
  /// thread, that which opens leases.
  virtual bool measures_links() const { return false; }
  virtual bool HasSlowLink(const std::string& donor, const MappedLease& lease, int64_t lease_bytes) { return false; }
  /// A Fence waits for one copy of this size at most.
  virtual int64_t most_bytes_a_copy() const = 0;
  virtual std::unique_ptr<LeaseLoader> CreateLoader(const ShmBorrower& leases, const ShmThrottle::Options& link,
                                                    const Clock& clock) = 0;
};

}  // namespace swiftcache::engine::transport
