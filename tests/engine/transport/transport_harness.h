// SPDX-License-Identifier: Apache-2.0
// Engines' ends of a shared-memory transport in a folder of their own.
//
//   ShmFolder folder;
//   Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
//   const LeaseView view = Lend(donor, borrower, kv::LeaseId(1), 0, bytes, store_bytes);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/address_space.h"
#include "engine/memory/arena.h"
#include "engine/transport/shm_transport.h"
#include "tests/fakes/gated_memory.h"
#include "tests/fakes/recording_transport_events.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::engine::transport {

/// A --shm_dir that goes at the end.
struct ShmFolder : TempFolder {
  ShmFolder() : TempFolder("/tmp") {}
};

inline constexpr int64_t kArenaBytes = 8160 * kKiB;  // 170 blocks, whole pages
inline constexpr int64_t kBlockBytes = 48 * kKiB;

inline backend::DeviceAddress At(const std::byte* bytes) { return backend::AddressSpace().Of(bytes); }
inline const std::byte* BytesAt(backend::DeviceAddress address) { return backend::AddressSpace().Host(address); }

/// One engine: its arena, what it heard, its transport.
struct Node {
  struct Options {
    std::string name;
    double link_gbps = 0;
    absl::Duration link_latency;
    int64_t arena_bytes = kArenaBytes;
    int64_t chunk_bytes = kMiB;  // small, so that extents straddle chunks
    bool remap_on_return = false;
    MemoryGates* gates = nullptr;  // of GatedMemory
  };
  Node(const ShmFolder& folder, const Options& options)
      : instance(options.name + "-instance"),
        arena(memory::Arena::Create({.bytes = options.arena_bytes,
                                     .block_bytes = kBlockBytes,
                                     .shared = !options.remap_on_return,
                                     .chunk_bytes = options.chunk_bytes})
                  .value()) {
    const ShmTransport::Options wanted = {.shm_dir = folder.path(),
                                          .name = options.name,
                                          .instance_id = instance,
                                          .link_gbps = options.link_gbps,
                                          .link_latency = options.link_latency,
                                          .remap_on_return = options.remap_on_return};
    auto created = options.gates == nullptr
                       ? ShmTransport::Create(wanted, arena, clock, events)
                       : ShmTransport::CreateOver("shm", std::make_unique<GatedMemory>(arena, *options.gates), wanted,
                                                  clock, events);
    EXPECT_TRUE(created.ok()) << created.status();
    transport = std::move(created).value();
  }

  Ticket Store(kv::LeaseId lease, int64_t offset_bytes, const std::byte* from, int64_t bytes) {
    const StorePiece piece{lease, offset_bytes, At(from), bytes};
    return transport->Store({&piece, 1}, {}).front();
  }

  std::string instance;
  RealClock clock;
  memory::Arena arena;
  RecordingTransportEvents events;
  std::unique_ptr<ShmTransport> transport;  // last: it uses all others
};

inline constexpr char kCapability[] = "c0ffee";

/// What a borrower asks for when `donor` has granted it the range. Of nodes of any kind.
template <typename AnyNode>
OpenSpec Granted(AnyNode& donor, const AnyNode& borrower, kv::LeaseId lease, int64_t offset, int64_t bytes,
                 int64_t store_bytes) {
  auto epoch = donor.transport->Grant({.lease = lease,
                                       .offset_bytes = offset,
                                       .bytes = bytes,
                                       .borrower_instance = borrower.instance,
                                       .capability = kCapability});
  EXPECT_TRUE(epoch.ok()) << epoch.status();
  return {.lease = lease,
          .channel = donor.transport->channel(),
          .capability = kCapability,
          .bytes = bytes,
          .epoch = epoch.value_or(kv::Epoch()),
          .store_bytes = store_bytes};
}

/// Opens a lease and waits for the answer.
template <typename AnyNode>
absl::StatusOr<LeaseView> OpenNow(AnyNode& borrower, const OpenSpec& spec) {
  borrower.transport->Open(spec);
  return borrower.events.Opening(spec.lease);
}

template <typename AnyNode>
LeaseView Lend(AnyNode& donor, AnyNode& borrower, kv::LeaseId lease, int64_t offset, int64_t bytes,
               int64_t store_bytes) {
  auto view = OpenNow(borrower, Granted(donor, borrower, lease, offset, bytes, store_bytes));
  EXPECT_TRUE(view.ok()) << view.status();
  return view.value_or(LeaseView());
}

/// But for pipes: no transport has one, and ThreadSanitizer opens two when it first asks whether a race is a known one.
inline int64_t OpenDescriptors() {
  return std::count_if(
      std::filesystem::directory_iterator("/proc/self/fd"), {}, [](const std::filesystem::directory_entry& descriptor) {
        std::error_code closed_meanwhile;
        return !std::filesystem::read_symlink(descriptor, closed_meanwhile).native().starts_with("pipe:");
      });
}

}  // namespace swiftcache::engine::transport
