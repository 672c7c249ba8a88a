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

/// Of a borrower's memory.
struct MemoryGates {
  Gate map_lease, unmap_lease;
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

  MemoryGates& gates_;
};

}  // namespace swiftcache::engine::transport
