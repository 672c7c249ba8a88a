// SPDX-License-Identifier: Apache-2.0
// Memory of processes: an arena of sealed chunks, mapped read-only by its borrowers, copied by processors.
//
//   ShmMemory memory(arena, space);
#pragma once

#include <memory>
#include <vector>

#include "engine/backend/address_space.h"
#include "engine/memory/arena.h"
#include "engine/transport/peer_memory.h"

namespace swiftcache::engine::transport {

/// Thread-safety, errors: PeerMemory's. Ownership: borrows the arena.
class ShmMemory final : public PeerMemory {
 public:
  ShmMemory(const memory::Arena& arena, const backend::AddressSpace& space) : arena_(arena), space_(space) {}

  absl::Status CheckLendable() const override;
  int64_t arena_bytes() const override { return arena_.mapped_bytes(); }
  absl::StatusOr<ShownMemory> Show(int64_t offset, int64_t bytes) const override;
  size_t num_staging_fds() const override { return 1; }
  absl::StatusOr<std::unique_ptr<PeerStaging>> MapStaging(int64_t bytes,
                                                          std::span<const memory::UniqueFd> fds) override;
  absl::Status CopyIn(int64_t offset, const PeerStaging& from, int64_t staging_offset, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<OwnStaging>> CreateStaging(int64_t ring_bytes) override;
  absl::Status CopyOut(OwnStaging& to, int64_t staging_offset, backend::DeviceAddress from, int64_t bytes,
                       const backend::Fence& after) override;
  absl::Status CheckGrant(const ShmGrantMessage& message, int64_t lease_bytes) const override;
  absl::StatusOr<std::unique_ptr<MappedLease>> MapLease(int64_t lease_bytes, std::span<const ShmPiece> pieces,
                                                        std::span<const memory::UniqueFd> fds) override;
  int64_t most_bytes_a_copy() const override { return Transport::kMaxCopyBytes; }
  std::unique_ptr<LeaseLoader> CreateLoader(const ShmBorrower& leases, const ShmThrottle::Options& link,
                                            const Clock& clock) override;

 private:
  const memory::Arena& arena_;
  const backend::AddressSpace space_;
};

}  // namespace swiftcache::engine::transport
