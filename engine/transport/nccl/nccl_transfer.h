// SPDX-License-Identifier: Apache-2.0
// What a borrower keeps of a lease, and of a batch that it has under way with one donor.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "engine/backend/fence.h"
#include "engine/transport/nccl/nccl_batch.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::nccl {

class NcclBorrowerChannel;

/// Thread-safety: guarded by the lock of the NcclBorrower that made it, but for `spec` and the word. Shared: by the table
/// and by what is under way.
struct NcclLease {
  enum class State { kOpening, kGranted, kOpen, kEnded };  // granted: it waits for the communicator

  explicit NcclLease(OpenSpec wanted) : spec(std::move(wanted)), word(spec.epoch.value()) {}

  const OpenSpec spec;
  std::atomic<uint64_t> word;  // ours: it changes when we hear that the lease has ended
  State state = State::kOpening;
  bool abandoned = false, released = false, closed = false;  // by its owner
  bool asked_for = false;                                    // its donor has been sent OPEN
  int telling = 0;                                           // events under way
  std::shared_ptr<NcclBorrowerChannel> channel;              // once it is dialled
};
using NcclLeasePtr = std::shared_ptr<NcclLease>;

/// Thread-safety: as NcclLease's, but for what is const. Shared: by the link's batch, and whoever waits for it.
struct NcclTransfer {
  struct Store {  // one or more pieces of a batch of stores
    Ticket ticket;
    uint32_t lease = 0;
    bool answered = false;
  };

  std::shared_ptr<NcclBorrowerChannel> channel;
  NcclBatchPtr batch;
  NcclBatchMessage message;                                 // number and name are filled in when it is announced
  std::vector<std::array<backend::DeviceAddress, 2>> here;  // of each piece
  std::vector<NcclLeasePtr> leases;                         // in the message's order
  absl::flat_hash_map<const NcclLease*, uint32_t> places;   // in that order
  std::vector<bool> lost;                                   // of each, so far
  std::vector<Store> stores;
  int64_t bytes = 0;
  absl::Time began;
  std::vector<uint8_t> held;  // the donor's verdict
  bool over = false;
};
using NcclTransferPtr = std::shared_ptr<NcclTransfer>;

/// One piece that is to travel, of whichever lease.
struct NcclMove {
  kv::LeaseId lease;
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
  std::array<backend::DeviceAddress, 2> here;  // of even and of odd layers
  bool first_is_there = false;                 // StreamSpec's
  Ticket ticket;                               // of a store
};

/// Moves of one kind that are asked for together. Where there are layers, all but the first two wait for SetReady.
struct NcclMoves {
  NcclKind kind = NcclKind::kLoad;
  int64_t layers = 1;
  int64_t layer_stride = 0;  // [bytes] in a lease
  bool first_again = false;  // StreamSpec's
  std::vector<NcclMove> moves;
  backend::Fence after;
};

/// What became of them: a transfer a donor, and the leases that could not even be asked for.
struct NcclBegun {
  std::vector<NcclTransferPtr> transfers;
  std::vector<kv::LeaseId> lost;
};

}  // namespace swiftcache::engine::transport::nccl
