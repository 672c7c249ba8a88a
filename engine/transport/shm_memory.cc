// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_foreign_memory.h"
#include "engine/transport/shm_loader.h"
#include "engine/transport/shm_staging.h"

namespace swiftcache::engine::transport {
namespace {

class ShmMappedLease final : public MappedLease {
 public:
  ShmMappedLease(memory::Mapping memory, const backend::AddressSpace& space)
      : memory_(std::move(memory)), base_(space.Of(memory_.base())) {}
  backend::DeviceAddress base() const override { return base_; }

 private:
  const memory::Mapping memory_;  // read-only
  const backend::DeviceAddress base_;
};

class ShmPeerStaging final : public PeerStaging {
 public:
  explicit ShmPeerStaging(memory::Mapping memory) : memory_(std::move(memory)) {}
  int64_t bytes() const override { return memory_.bytes(); }
  uint64_t reads() const override {
    return ShmReadsWord(memory_.base(), memory_.bytes())->load(std::memory_order_relaxed);
  }
  const std::byte* base() const { return memory_.base(); }

 private:
  const memory::Mapping memory_;  // read-only
};

// The layout is shm_staging.h's.
class ShmOwnStaging final : public OwnStaging {
 public:
  ShmOwnStaging(memory::Mapping memory, memory::UniqueFd fd) : memory_(std::move(memory)), fd_(std::move(fd)) {}
  int64_t bytes() const override { return memory_.bytes(); }
  std::vector<int> fds() const override { return {fd_.get()}; }
  std::atomic<uint64_t>* reads() const override { return ShmReadsWord(memory_.base(), memory_.bytes()); }
  std::byte* base() const { return memory_.base(); }

 private:
  const memory::Mapping memory_;
  const memory::UniqueFd fd_;  // read-only
};

}  // namespace

absl::Status ShmMemory::CheckLendable() const {
  if (remaps_ || !arena_.chunks().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("this engine's arena is not shared: it cannot lend");
}

absl::StatusOr<ShownMemory> ShmMemory::Show(int64_t offset, int64_t bytes) const {
  if (remaps_) return ShowLent(offset, bytes);
  ShownMemory shown;
  for (const memory::ArenaChunk& chunk : arena_.chunks()) {
    const int64_t from = std::max(offset, chunk.offset), to = std::min(offset + bytes, chunk.offset + chunk.bytes);
    if (from >= to) continue;
    shown.pieces.push_back({.offset = from - chunk.offset, .bytes = to - from});
    shown.fds.push_back(chunk.fd);
  }
  return shown;
}

// A descriptor of its own: Exchange may close the other one while this is sent.
absl::StatusOr<ShownMemory> ShmMemory::ShowLent(int64_t offset, int64_t bytes) const {
  ShownMemory shown;
  {
    absl::MutexLock lock(&mutex_);
    const auto lent = lent_.find(offset);
    if (lent != lent_.end()) shown.kept.emplace_back(fcntl(lent->second.get(), F_DUPFD_CLOEXEC, 0));
  }
  if (shown.kept.empty() || !shown.kept.front().ok()) {
    return absl::UnavailableError(absl::StrCat("there is no descriptor of what is lent at ", offset));
  }
  shown.pieces.push_back({.offset = 0, .bytes = bytes});
  shown.fds.push_back(shown.kept.front().get());
  return shown;
}

absl::Status ShmMemory::PrepareToLend(int64_t offset, int64_t bytes) {
  const int64_t page = memory::Arena::page_bytes();
  if (offset % page != 0 || bytes % page != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease is of ", bytes, " bytes at ", offset, "; whole pages of ", page, " bytes are wanted"));
  }
  absl::StatusOr<memory::UniqueFd> fd = arena_.Show(offset, bytes);
  absl::MutexLock lock(&mutex_);
  memory::UniqueFd& lent = lent_[offset];  // none is as much to be exchanged
  if (!fd.ok()) return fd.status();
  lent = *std::move(fd);
  return absl::OkStatus();
}

absl::Status ShmMemory::Exchange(int64_t offset, int64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    const auto lent = lent_.find(offset);
    if (lent == lent_.end()) return absl::OkStatus();  // it was never prepared
    lent->second = memory::UniqueFd();                 // what nobody has mapped is free from here on
  }
  RETURN_IF_ERROR(arena_.Renew(offset, bytes));
  absl::MutexLock lock(&mutex_);
  lent_.erase(offset);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PeerStaging>> ShmMemory::MapStaging(int64_t bytes,
                                                                   std::span<const memory::UniqueFd> fds) {
  ASSIGN_OR_RETURN(memory::Mapping staging, memory::Mapping::Reserve(bytes));
  RETURN_IF_ERROR(MapForeignMemory(fds[0].get(), 0, bytes, staging.base()));
  return std::make_unique<ShmPeerStaging>(std::move(staging));
}

absl::Status ShmMemory::CopyIn(int64_t offset, const PeerStaging& from, int64_t staging_offset, int64_t bytes) {
  std::memcpy(arena_.base() + offset, static_cast<const ShmPeerStaging&>(from).base() + staging_offset, bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OwnStaging>> ShmMemory::CreateStaging(int64_t ring_bytes) {
  const int64_t bytes = ring_bytes + sysconf(_SC_PAGESIZE);
  ASSIGN_OR_RETURN(memory::Mapping staging, memory::Mapping::Reserve(bytes));
  ASSIGN_OR_RETURN(memory::UniqueFd fd, memory::CreateSealedMemory("swiftcache-staging", staging.base(), bytes));
  return std::make_unique<ShmOwnStaging>(std::move(staging), std::move(fd));
}

absl::Status ShmMemory::CopyOut(OwnStaging& to, int64_t staging_offset, backend::DeviceAddress from, int64_t bytes,
                                const backend::Fence& after) {
  after.Wait();
  std::memcpy(static_cast<ShmOwnStaging&>(to).base() + staging_offset, space_.Host(from), bytes);
  return absl::OkStatus();
}

absl::Status ShmMemory::CheckGrant(const ShmGrantMessage& message, int64_t lease_bytes) const {
  return CheckShmGrant(message, lease_bytes, sysconf(_SC_PAGESIZE));
}

absl::StatusOr<std::unique_ptr<MappedLease>> ShmMemory::MapLease(int64_t lease_bytes, std::span<const ShmPiece> pieces,
                                                                 std::span<const memory::UniqueFd> fds) {
  ASSIGN_OR_RETURN(memory::Mapping memory, memory::Mapping::Reserve(lease_bytes, pieces.front().offset));
  std::byte* at = memory.base();
  for (size_t i = 0; i < pieces.size(); ++i) {
    RETURN_IF_ERROR(MapForeignMemory(fds[i].get(), pieces[i].offset, pieces[i].bytes, at));
    at += pieces[i].bytes;
  }
  return std::make_unique<ShmMappedLease>(std::move(memory), space_);
}

std::unique_ptr<LeaseLoader> ShmMemory::CreateLoader(const ShmBorrower& leases, const ShmThrottle::Options& link,
                                                     const Clock& clock) {
  return std::make_unique<ShmLoader>(leases, ShmLoader::Options{.link = link, .space = space_}, clock);
}

}  // namespace swiftcache::engine::transport
