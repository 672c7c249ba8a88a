// SPDX-License-Identifier: Apache-2.0
// Engines' ends of an NCCL transport, each with a device of its own that is none.
//
//   ShmFolder folder;
//   NcclNode donor(folder, "donor"), borrower(folder, "borrower");
//   const LeaseView view = Lend(donor, borrower, kLease, 0, kLeaseBytes);
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/transport/nccl/nccl_transport.h"
#include "tests/engine/backend/cuda/cuda_harness.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/fake_nccl.h"
#include "tests/fakes/interrupted_clock.h"
#include "tests/fakes/recording_transport_events.h"

namespace swiftcache::engine::transport::nccl {

using backend::cuda::FakeCudaDriver;

inline constexpr int64_t kNcclArenaBytes = 64 * backend::cuda::kUnit;  // 4 MiB
inline constexpr int64_t kNcclLeaseBytes = 16 * backend::cuda::kUnit;  // 1 MiB

inline constexpr kv::LeaseId kOther{8};  // beside kLease
inline constexpr int64_t kPiece = 48 * kKiB;

/// One engine: its device, its arena, what it heard, its transport.
struct NcclNode {
  NcclNode(const ShmFolder& folder, const std::string& name, const FakeCudaDriver::Options& device = {},
           int nccl_version = 23203)
      : instance(name + "-instance"), driver(device), nccl(driver, /*settle_polls=*/2, nccl_version) {
    arena = backend::cuda::MakeArena(driver, {.bytes = kNcclArenaBytes, .block_bytes = backend::cuda::kUnit});
    auto created = NcclTransport::Create({.shm_dir = folder.path(),
                                          .name = name,
                                          .instance_id = instance,
                                          .arena = arena->base(),
                                          .arena_bytes = kNcclArenaBytes},
                                         nccl, driver, clock, events);
    EXPECT_TRUE(created.ok()) << created.status();
    transport = std::move(created).value();
  }
  ~NcclNode() {
    transport.reset();
    arena.reset();
    EXPECT_EQ(nccl.Misuse(), "");
    EXPECT_EQ(nccl.num_communicators(), 0);
    backend::cuda::ExpectClean(driver);
  }

  backend::DeviceAddress At(int64_t offset) const { return arena->base() + offset; }
  /// What the host sees of the device's memory.
  std::byte* Memory(int64_t offset) const { return FakeCudaDriver::Host(At(offset)); }
  void Fill(int64_t offset, const std::vector<std::byte>& bytes) const {
    std::memcpy(Memory(offset), bytes.data(), bytes.size());
  }
  std::vector<std::byte> Read(int64_t offset, int64_t bytes) const { return {Memory(offset), Memory(offset) + bytes}; }

  Ticket Load(kv::LeaseId lease, int64_t offset, int64_t bytes, int64_t to) {
    return transport->Load({{.lease = lease, .offset_bytes = offset, .bytes = bytes, .to = At(to)}}, {});
  }
  /// Loads and waits: what is lost.
  std::vector<kv::LeaseId> LoadNow(kv::LeaseId lease, int64_t offset, int64_t bytes, int64_t to) {
    return transport->Await(Load(lease, offset, bytes, to));
  }
  Ticket Store(kv::LeaseId lease, int64_t offset, int64_t from, int64_t bytes) {
    const StorePiece piece{lease, offset, At(from), bytes};
    return transport->Store({&piece, 1}, {}).front();
  }

  std::string instance;
  InterruptedClock clock;
  FakeCudaDriver driver;
  FakeNccl nccl;
  std::unique_ptr<backend::cuda::CudaArena> arena;
  RecordingTransportEvents events;
  std::unique_ptr<NcclTransport> transport;  // last: it uses all others
};

/// Of what no event tells.
inline bool Eventually(const std::function<bool()>& condition) {
  for (const absl::Time end = absl::Now() + RecordingTransportEvents::kPatience; absl::Now() < end;) {
    if (condition()) return true;
    absl::SleepFor(absl::Microseconds(200));
  }
  return false;
}

/// Whether it holds now, between two events.
inline bool HoldsNow(RecordingTransportEvents& events, const std::function<bool()>& condition) {
  bool holds = false;
  (void)events.WaitFor([&] {
    holds = condition();
    return true;
  });
  return holds;
}

/// As those of nodes of any kind, with room for stores of the whole lease.
inline OpenSpec Granted(NcclNode& donor, const NcclNode& borrower, kv::LeaseId lease, int64_t offset,
                        int64_t bytes = kNcclLeaseBytes) {
  return transport::Granted(donor, borrower, lease, offset, bytes, kNcclLeaseBytes);
}

inline LeaseView Lend(NcclNode& donor, NcclNode& borrower, kv::LeaseId lease, int64_t offset,
                      int64_t bytes = kNcclLeaseBytes) {
  return transport::Lend(donor, borrower, lease, offset, bytes, kNcclLeaseBytes);
}

}  // namespace swiftcache::engine::transport::nccl
