// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/cuda_ipc_memory.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/transport/cuda_ipc/cuda_loader.h"
#include "engine/transport/cuda_ipc/cuda_mapping.h"
#include "engine/transport/shm_foreign_memory.h"
#include "engine/transport/shm_staging.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using backend::cuda::Access;
using backend::cuda::Allocation;

class CudaLease final : public MappedLease {
 public:
  CudaLease(std::unique_ptr<CudaMapping> memory, int64_t offset) : memory_(std::move(memory)), offset_(offset) {}
  backend::DeviceAddress base() const override { return backend::cuda::ToDeviceAddress(memory_->base() + offset_); }

 private:
  const std::unique_ptr<CudaMapping> memory_;
  const int64_t offset_;
};

class CudaPeerStaging final : public PeerStaging {
 public:
  CudaPeerStaging(memory::Mapping page, std::unique_ptr<CudaMapping> ring)
      : page_(std::move(page)), ring_(std::move(ring)) {}
  int64_t bytes() const override { return ring_->bytes(); }
  uint64_t reads() const override { return ShmReadsWord(page_.base(), page_.bytes())->load(std::memory_order_relaxed); }
  uint64_t base() const { return ring_->base(); }

 private:
  const memory::Mapping page_;  // read-only
  const std::unique_ptr<CudaMapping> ring_;
};

class CudaOwnStaging final : public OwnStaging {
 public:
  CudaOwnStaging(memory::Mapping page, memory::UniqueFd page_fd, std::unique_ptr<CudaMapping> ring,
                 memory::UniqueFd ring_fd)
      : page_(std::move(page)), page_fd_(std::move(page_fd)), ring_(std::move(ring)), ring_fd_(std::move(ring_fd)) {}
  int64_t bytes() const override { return ring_->bytes(); }
  std::vector<int> fds() const override { return {page_fd_.get(), ring_fd_.get()}; }
  std::atomic<uint64_t>* reads() const override { return ShmReadsWord(page_.base(), page_.bytes()); }
  uint64_t base() const { return ring_->base(); }

 private:
  const memory::Mapping page_;
  const memory::UniqueFd page_fd_;  // read-only
  const std::unique_ptr<CudaMapping> ring_;
  const memory::UniqueFd ring_fd_;
};

}  // namespace

absl::Status CudaIpcMemory::CheckLendable() const {
  if (arena_.shared()) return absl::OkStatus();
  return absl::FailedPreconditionError("this engine's arena is not shared: it cannot lend");
}

absl::StatusOr<ShownMemory> CudaIpcMemory::Show(int64_t offset, int64_t bytes) const {
  ShownMemory shown;
  for (size_t i = 0; i < arena_.chunks().size(); ++i) {
    const auto& chunk = arena_.chunks()[i];
    if (chunk.offset + chunk.bytes <= offset || offset + bytes <= chunk.offset) continue;
    ASSIGN_OR_RETURN(memory::UniqueFd fd, arena_.Export(i));
    shown.pieces.push_back({.offset = std::max<int64_t>(offset - chunk.offset, 0), .bytes = chunk.bytes});
    shown.fds.push_back(fd.get());
    shown.kept.push_back(std::move(fd));
  }
  return shown;
}

absl::StatusOr<std::unique_ptr<PeerStaging>> CudaIpcMemory::MapStaging(int64_t bytes,
                                                                       std::span<const memory::UniqueFd> fds) {
  if (bytes % unit() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("HELLO brings staging memory of ", bytes, " bytes; multiples of ", unit(), " are wanted"));
  }
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  ASSIGN_OR_RETURN(memory::Mapping page, memory::Mapping::Reserve(page_bytes));
  RETURN_IF_ERROR(MapForeignMemory(fds[0].get(), 0, page_bytes, page.base()));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaMapping> ring, CudaMapping::Reserve(driver_, bytes));
  ASSIGN_OR_RETURN(const Allocation memory, driver_.Import(fds[1].get()));
  RETURN_IF_ERROR(ring->Add(memory, bytes, Access::kRead));
  return std::make_unique<CudaPeerStaging>(std::move(page), std::move(ring));
}

absl::Status CudaIpcMemory::CopyIn(int64_t offset, const PeerStaging& from, int64_t staging_offset, int64_t bytes) {
  const uint64_t to = backend::cuda::ToNumber(arena_.base()) + offset;
  const uint64_t source = static_cast<const CudaPeerStaging&>(from).base() + staging_offset;
  return pulls_.Run({.runs = {{.to = to, .from = source, .bytes = bytes}}}, {});
}

// Nothing of the chunks is in use or under way: they were cleared before they were granted, and the last store is over.
absl::Status CudaIpcMemory::Exchange(int64_t offset, int64_t bytes) {
  std::vector<size_t> whole;
  for (size_t i = 0; i < arena_.chunks().size(); ++i) {
    const auto& chunk = arena_.chunks()[i];
    if (offset <= chunk.offset && chunk.offset + chunk.bytes <= offset + bytes) whole.push_back(i);
  }
  for (const size_t chunk : whole) {
    if (exchanged_.contains(chunk)) continue;
    RETURN_IF_ERROR(arena_.Remap(chunk));
    exchanged_.insert(chunk);
  }
  for (const size_t chunk : whole) exchanged_.erase(chunk);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OwnStaging>> CudaIpcMemory::CreateStaging(int64_t ring_bytes) {
  const int64_t page_bytes = sysconf(_SC_PAGESIZE), bytes = CeilDiv(ring_bytes, unit()) * unit();
  ASSIGN_OR_RETURN(memory::Mapping page, memory::Mapping::Reserve(page_bytes));
  ASSIGN_OR_RETURN(memory::UniqueFd page_fd, memory::CreateSealedMemory("swiftcache-staging", page.base(), page_bytes));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaMapping> ring, CudaMapping::Reserve(driver_, bytes));
  ASSIGN_OR_RETURN(const Allocation memory, driver_.Allocate(bytes));
  const absl::StatusOr<int> exported = driver_.Export(memory);
  memory::UniqueFd ring_fd(exported.value_or(-1));
  RETURN_IF_ERROR(ring->Add(memory, bytes, Access::kReadWrite));
  RETURN_IF_ERROR(exported.status());
  return std::make_unique<CudaOwnStaging>(std::move(page), std::move(page_fd), std::move(ring), std::move(ring_fd));
}

absl::Status CudaIpcMemory::CopyOut(OwnStaging& to, int64_t staging_offset, backend::DeviceAddress from, int64_t bytes,
                                    const backend::Fence& after) {
  const uint64_t target = static_cast<CudaOwnStaging&>(to).base() + staging_offset;
  return stores_.Run({.runs = {{.to = target, .from = backend::cuda::ToNumber(from), .bytes = bytes}}}, after);
}

// Every number is a peer's: sums are of what has been bounded before.
absl::Status CudaIpcMemory::CheckGrant(const ShmGrantMessage& message, int64_t lease_bytes) const {
  const int64_t page = sysconf(_SC_PAGESIZE), first = message.pieces.front().offset;
  int64_t before = 0, all = 0;  // bytes of the chunks before the last, and with it
  for (const ShmPiece& piece : message.pieces) {
    const auto sum = CheckedAdd(all, piece.bytes);
    if (piece.bytes <= 0 || piece.bytes % unit() != 0 || piece.offset < 0 || piece.offset % page != 0 ||
        piece.offset >= piece.bytes || (&piece != &message.pieces.front() && piece.offset != 0) || !sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("GRANT has a chunk of ", piece.bytes, " bytes, begun at ", piece.offset));
    }
    before = std::exchange(all, *sum);
  }
  if (message.grant.bytes != lease_bytes || lease_bytes > all - first || lease_bytes <= before - first) {
    return absl::InvalidArgumentError(absl::StrCat("GRANT is of ", message.grant.bytes, " bytes at ", first, " of ",
                                                   all, "; ", lease_bytes, " were leased"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedLease>> CudaIpcMemory::MapLease(int64_t, std::span<const ShmPiece> pieces,
                                                                     std::span<const memory::UniqueFd> fds) {
  int64_t bytes = 0;
  for (const ShmPiece& piece : pieces) bytes += piece.bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<CudaMapping> mapping, CudaMapping::Reserve(driver_, bytes));
  for (size_t i = 0; i < pieces.size(); ++i) {
    ASSIGN_OR_RETURN(const Allocation chunk, driver_.Import(fds[i].get()));
    RETURN_IF_ERROR(mapping->Add(chunk, pieces[i].bytes, Access::kRead));
  }
  return std::make_unique<CudaLease>(std::move(mapping), pieces.front().offset);
}

bool CudaIpcMemory::HasSlowLink(const std::string& donor, const MappedLease& lease, int64_t lease_bytes) {
  if (!links_) return false;
  return links_->IsSlow(donor, backend::cuda::ToNumber(lease.base()), lease_bytes);
}

std::unique_ptr<LeaseLoader> CudaIpcMemory::CreateLoader(const ShmBorrower& leases, const ShmThrottle::Options&,
                                                         const Clock& clock) {
  return std::make_unique<CudaLoader>(driver_, leases, clock);
}

}  // namespace swiftcache::engine::transport::cuda_ipc
