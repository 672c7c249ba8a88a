// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs, shown to other processes through the driver: leases are chunks that their borrower maps and copies out
// of, stores wait in staging memory that the donor maps and copies out of. Between two GPUs copy engines do both; on one
// the driver chooses.
//
//   auto memory = std::make_unique<CudaIpcMemory>(driver, arena, /*remaps=*/false);
//
// On the wire (engine/transport/shm_message.h), where it differs from memory of processes:
//
//   HELLO  two descriptors: a page of host memory (shm_staging.h, without a ring), and the ring, which lies on the GPU
//   GRANT  a piece is a whole chunk, since a driver maps nothing less: `bytes` is the chunk's size, `offset` is where in
//          the first chunk the lease begins, and 0 in all others
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/backend/cuda/driver.h"
#include "engine/transport/cuda_ipc/link_meter.h"
#include "engine/transport/peer_memory.h"

namespace swiftcache::engine::transport::cuda_ipc {

/// A driver lets whoever imports memory choose how to map it. We map for reading, and nothing makes a peer do so: engines
/// of one --shm_dir trust each other not to write what they were lent, and not to read the rest of its chunks. With
/// --remap_on_return that trust ends with the lease: chunks that were lent whole get other memory, and what a borrower
/// keeps mapped is nobody's.
///
/// Why a pull under way does no harm when its lease is fenced: Fence changes the word, then waits until CopyIn has
/// returned (ShmDonor: `copying`), and CopyIn returns when its event has passed, or when its stream is empty
/// (CopyLane::Finish). So nothing of ours writes to the memory after Fence; nobody else ever does.
///
/// Thread-safety, errors: PeerMemory's. Ownership: owns its lanes; borrows driver and arena.
class CudaIpcMemory final : public PeerMemory {
 public:
  /// What a copy engine moves in about a millisecond where the link is slow (PCIe), and in 50 us where it is NVLink.
  static constexpr int64_t kMostBytesACopy = 16ll << 20;

  /// `remaps`: whole chunks of a lease that ends get other memory. `measured_by`: the clock by which links are measured,
  /// or null.
  CudaIpcMemory(backend::cuda::Driver& driver, backend::cuda::CudaArena& arena, bool remaps = false,
                const Clock* measured_by = nullptr)
      : driver_(driver), arena_(arena), remaps_(remaps), pulls_(driver), stores_(driver) {
    if (measured_by != nullptr) links_.emplace(driver, *measured_by);
  }

  absl::Status CheckLendable() const override;
  int64_t arena_bytes() const override { return arena_.mapped_bytes(); }
  absl::StatusOr<ShownMemory> Show(int64_t offset, int64_t bytes) const override;
  size_t num_staging_fds() const override { return 2; }
  absl::StatusOr<std::unique_ptr<PeerStaging>> MapStaging(int64_t bytes,
                                                          std::span<const memory::UniqueFd> fds) override;
  absl::Status CopyIn(int64_t offset, const PeerStaging& from, int64_t staging_offset, int64_t bytes) override;
  bool exchanges() const override { return remaps_; }
  /// Where it is tried again, chunks that have got other memory keep that.
  absl::Status Exchange(int64_t offset, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<OwnStaging>> CreateStaging(int64_t ring_bytes) override;
  absl::Status CopyOut(OwnStaging& to, int64_t staging_offset, backend::DeviceAddress from, int64_t bytes,
                       const backend::Fence& after) override;
  absl::Status CheckGrant(const ShmGrantMessage& message, int64_t lease_bytes) const override;
  absl::StatusOr<std::unique_ptr<MappedLease>> MapLease(int64_t lease_bytes, std::span<const ShmPiece> pieces,
                                                        std::span<const memory::UniqueFd> fds) override;
  bool reads_cross_link() const override { return true; }
  bool measures_links() const override { return links_.has_value(); }
  bool HasSlowLink(const std::string& donor, const MappedLease& lease, int64_t lease_bytes) override;
  int64_t most_bytes_a_copy() const override { return kMostBytesACopy; }
  /// The link is a GPU's: it is not slowed down.
  std::unique_ptr<LeaseLoader> CreateLoader(const ShmBorrower& leases, const ShmThrottle::Options& link,
                                            const Clock& clock) override;

 private:
  int64_t unit() const { return driver_.info().granularity_bytes; }

  backend::cuda::Driver& driver_;
  backend::cuda::CudaArena& arena_;
  const bool remaps_;
  std::set<size_t> exchanged_;  // chunks, of parts of which others are still to be; of the thread that calls Exchange
  backend::cuda::CopyLane pulls_, stores_;  // as a donor, as a borrower
  std::optional<LinkMeter> links_;
};

}  // namespace swiftcache::engine::transport::cuda_ipc
