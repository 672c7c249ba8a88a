// SPDX-License-Identifier: Apache-2.0
// Memory of processes: an arena whose parts are sealed, mapped read-only by borrowers, copied by processors.
//
//   ShmMemory memory(arena, space, /*remaps=*/false);
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/backend/address_space.h"
#include "engine/memory/arena.h"
#include "engine/transport/peer_memory.h"

namespace swiftcache::engine::transport {

/// What a borrower can read, if it means to:
///   - of a shared arena: of each chunk in which its lease lies all bytes, for as long as it likes. Its donor's own KV is
///     there, that of others who borrow there, and what is written after the lease has ended.
///   - where this remaps: its lease, and of that what was there until the lease ended. PrepareToLend lays memory there
///     that nothing else lies in; Exchange lays other memory there that nobody is shown. A borrower that does not unmap
///     the first keeps it from being free, and has nothing else of it.
///
/// Thread-safety, errors: PeerMemory's. Ownership: borrows the arena.
class ShmMemory : public PeerMemory {
 public:
  /// REQUIRES: the arena is not shared where this `remaps`; where it does not, only a shared one can be lent of.
  ShmMemory(memory::Arena& arena, const backend::AddressSpace& space, bool remaps)
      : arena_(arena), space_(space), remaps_(remaps) {}

  absl::Status CheckLendable() const override;
  int64_t arena_bytes() const override { return arena_.mapped_bytes(); }
  absl::StatusOr<ShownMemory> Show(int64_t offset, int64_t bytes) const override ABSL_LOCKS_EXCLUDED(mutex_);
  bool exchanges() const override { return remaps_; }
  absl::Status PrepareToLend(int64_t offset, int64_t bytes) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Exchange(int64_t offset, int64_t bytes) override ABSL_LOCKS_EXCLUDED(mutex_);
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
  bool reads_cross_link() const override { return false; }
  int64_t most_bytes_a_copy() const override { return Transport::kMaxCopyBytes; }
  std::unique_ptr<LeaseLoader> CreateLoader(const ShmBorrower& leases, const ShmThrottle::Options& link,
                                            const Clock& clock) override;

 private:
  absl::StatusOr<ShownMemory> ShowLent(int64_t offset, int64_t bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

  memory::Arena& arena_;
  const backend::AddressSpace space_;
  const bool remaps_;
  mutable absl::Mutex mutex_;
  std::map<int64_t, memory::UniqueFd> lent_ ABSL_GUARDED_BY(mutex_);  // by offset; none: it could not be had
};

}  // namespace swiftcache::engine::transport
