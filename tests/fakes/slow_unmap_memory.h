// SPDX-License-Identifier: Apache-2.0
// Memory of processes whose unmapping takes as long as the test likes: a borrower's that unmaps much.
//
//   auto transport = ShmTransport::CreateOver("shm", std::make_unique<SlowUnmapMemory>(arena, gate), options, ...);
//   gate.Close();   // whoever unmaps a lease hangs
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "common/base/status_macros.h"
#include "engine/transport/shm_memory.h"
#include "tests/fakes/gate.h"

namespace swiftcache::engine::transport {

/// PeerMemory's. Ownership: borrows arena and gate.
class SlowUnmapMemory final : public ShmMemory {
 public:
  SlowUnmapMemory(memory::Arena& arena, Gate& gate) : ShmMemory(arena, {}, /*remaps=*/false), gate_(gate) {}

  absl::StatusOr<std::unique_ptr<MappedLease>> MapLease(int64_t lease_bytes, std::span<const ShmPiece> pieces,
                                                        std::span<const memory::UniqueFd> fds) override {
    ASSIGN_OR_RETURN(std::unique_ptr<MappedLease> mapped, ShmMemory::MapLease(lease_bytes, pieces, fds));
    return std::make_unique<Mapped>(std::move(mapped), gate_);
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

  Gate& gate_;
};

}  // namespace swiftcache::engine::transport
