// SPDX-License-Identifier: Apache-2.0
// Engines whose GPUs are fakes, and their ends of a cuda_ipc transport.
//
//   ShmFolder folder;
//   CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
//   const LeaseView view = Lend(donor, borrower, kLease, kUnit, kLeaseBytes, store_bytes);
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/units.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/transport/cuda_ipc/cuda_ipc_transport.h"
#include "tests/engine/backend/cuda/cuda_harness.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/recording_transport_events.h"

namespace swiftcache::engine::transport::cuda_ipc {

using backend::cuda::ExpectClean;
using backend::cuda::FakeCudaDriver;
using backend::cuda::kUnit;

/// Of its arena the upper half is lent, and the lower is what stores come from and loads go to.
struct CudaNode {
  static constexpr int64_t kArenaUnits = 64;  // 4 MiB
  struct Options {
    std::string name;
    uint64_t seed = 1;
    int64_t most_late_us = 100;
    bool remaps = false;
    bool measures_links = false;
    int64_t adjacent_bytes = 0;  // FakeCudaDriver's
    std::function<void(const backend::cuda::DeviceCopy&)> on_copy = {};
    const Clock* clock = nullptr;  // null: the real one
  };
  CudaNode(const ShmFolder& folder, const Options& options)
      : instance(options.name + "-instance"),
        driver({.seed = options.seed,
                .most_late_us = options.most_late_us,
                .adjacent_bytes = options.adjacent_bytes,
                .on_copy = options.on_copy}),
        arena(backend::cuda::MakeArena(
            driver,
            {.bytes = kArenaUnits * kUnit, .block_bytes = 16 * kKiB, .shared = true, .chunk_bytes = 3 * kUnit})) {
    auto created = CreateCudaIpcTransport({.shm_dir = folder.path(),
                                           .name = options.name,
                                           .instance_id = instance,
                                           .remap_on_return = options.remaps,
                                           .measures_links = options.measures_links},
                                          driver, *arena, options.clock == nullptr ? clock : *options.clock, events);
    EXPECT_TRUE(created.ok()) << created.status();
    transport = std::move(created).value();
  }

  backend::DeviceAddress At(int64_t offset) const { return arena->base() + offset; }
  std::byte* Bytes(int64_t offset) const { return FakeCudaDriver::Host(At(offset)); }
  void Write(int64_t offset, const std::vector<std::byte>& bytes) const {
    std::memcpy(Bytes(offset), bytes.data(), bytes.size());
  }
  bool Has(int64_t offset, const std::vector<std::byte>& bytes) const {
    return std::memcmp(Bytes(offset), bytes.data(), bytes.size()) == 0;
  }
  Ticket Store(kv::LeaseId lease, int64_t lease_offset, int64_t from, int64_t bytes) const {
    const StorePiece piece{lease, lease_offset, At(from), bytes};
    return transport->Store({&piece, 1}, {}).front();
  }
  std::vector<kv::LeaseId> LoadNow(kv::LeaseId lease, int64_t lease_offset, int64_t bytes, int64_t to) const {
    return transport->Await(transport->Load({{lease, lease_offset, bytes, At(to)}}, {}));
  }

  std::string instance;
  RealClock clock;
  FakeCudaDriver driver;
  std::unique_ptr<backend::cuda::CudaArena> arena;
  RecordingTransportEvents events;
  std::unique_ptr<Transport> transport;  // last: it uses all others
};

/// Gives everything back and looks whether it has.
inline void EndCleanly(CudaNode& node) {
  node.transport.reset();
  node.arena.reset();
  ExpectClean(node.driver);
}

inline constexpr int64_t kLent = 32 * kUnit + 4 * kKiB;  // where in the donor's arena the lease begins
inline constexpr int64_t kLentBytes = 8 * kUnit;         // over the border of two chunks
inline constexpr int64_t kStoreBytes = 48 * kKiB;

}  // namespace swiftcache::engine::transport::cuda_ipc
