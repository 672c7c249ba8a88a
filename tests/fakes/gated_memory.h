// SPDX-License-Identifier: Apache-2.0
// Memory of processes that is mapped and unmapped for as long as the test likes, as much of it is.
//
//   MemoryGates gates;
//   auto transport = ShmTransport::CreateOver("shm", std::make_unique<GatedMemory>(arena, gates), options, ...);
//   gates.unmap_lease.Close();   // whoever unmaps a lease hangs
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "common/base/status_macros.h"
#include "engine/transport/shm_memory.h"
#include "tests/fakes/gate.h"

namespace swiftcache::engine::transport {

struct MemoryGates {
  Gate map_lease, unmap_lease;            // of a borrower
  Gate map_staging, show, unmap_staging;  // of a donor
};

/// PeerMemory's. Ownership: borrows arena and gates.
class GatedMemory final : public ShmMemory {
 public:
  GatedMemory(memory::Arena& arena, MemoryGates& gates) : ShmMemory(arena, {}, /*remaps=*/false), gates_(gates) {}

  absl::StatusOr<std::unique_ptr<MappedLease>> MapLease(int64_t lease_bytes, std::span<const ShmPiece> pieces,
                                                        std::span<const memory::UniqueFd> fds) override {
    gates_.map_lease.Pass();
    ASSIGN_OR_RETURN(std::unique_ptr<MappedLease> mapped, ShmMemory::MapLease(lease_bytes, pieces, fds));
    return std::make_unique<Mapped>(std::move(mapped), gates_.unmap_lease);
  }

  absl::StatusOr<std::unique_ptr<PeerStaging>> MapStaging(int64_t bytes,
                                                          std::span<const memory::UniqueFd> fds) override {
    gates_.map_staging.Pass();
    ASSIGN_OR_RETURN(std::unique_ptr<PeerStaging> mapped, ShmMemory::MapStaging(bytes, fds));
    return std::make_unique<Staging>(std::move(mapped), gates_.unmap_staging);
  }
  absl::StatusOr<ShownMemory> Show(int64_t offset, int64_t bytes) const override {
    gates_.show.Pass();
    return ShmMemory::Show(offset, bytes);
  }
  absl::Status CopyIn(int64_t offset, const PeerStaging& from, int64_t staging_offset, int64_t bytes) override {
    return ShmMemory::CopyIn(offset, static_cast<const Staging&>(from).mapped(), staging_offset, bytes);
  }

 private:
  class Mapped final : public MappedLease {
   public:
    Mapped(std::unique_ptr<MappedLease> mapped, Gate& gate) : mapped_(std::move(mapped)), gate_(gate) {}
    ~Mapped() override { gate_.Pass(); }
    backend::DeviceAddress base() const override { return mapped_->base(); }

   private:
    const std::unique_ptr<MappedLease> mapped_;
    Gate& gate_;
  };

  class Staging final : public PeerStaging {
   public:
    Staging(std::unique_ptr<PeerStaging> mapped, Gate& gate) : mapped_(std::move(mapped)), gate_(gate) {}
    ~Staging() override { gate_.Pass(); }
    int64_t bytes() const override { return mapped_->bytes(); }
    uint64_t reads() const override { return mapped_->reads(); }
    const PeerStaging& mapped() const { return *mapped_; }

   private:
    const std::unique_ptr<PeerStaging> mapped_;
    Gate& gate_;
  };

  MemoryGates& gates_;
};

}  // namespace swiftcache::engine::transport
