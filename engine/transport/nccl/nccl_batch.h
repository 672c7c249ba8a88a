// SPDX-License-Identifier: Apache-2.0
// What crosses a link for one control message: groups of sends, or of receives, one after the other.
//
//   auto batch = std::make_shared<NcclBatch>(NcclDirection::kReceive, std::move(groups));
//   batch->announce = [&](uint64_t number) { return Send(BATCH of number); };
//   link.Post(batch);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/backend/cuda/event_fence.h"
#include "engine/backend/fence.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/nccl/nccl_message.h"

namespace swiftcache::engine::transport::nccl {

/// Of a batch: what NCCL takes at once.
struct NcclGroup {
  struct Piece {
    NcclRun run;
    uint32_t lease = 0;  // its place among the leases of the batch
  };
  std::vector<Piece> pieces;
  // From here on guarded by the link's lock.
  bool ready = true;       // may begin, once `after` has passed
  backend::Fence after;    // before which the memory is not touched
  bool is_behind = false;  // `after` will never pass: it is of work that failed, and holds nothing up
  bool posted = false;     // it is in the stream, if there is anything of it
  uint64_t landing = 0;    // where it is received, if that is not where its pieces belong
  std::shared_ptr<const backend::cuda::EventFence> event;  // null: there was nothing to send
};

/// Thread-safety: guarded by the lock of the link that it was posted to, but for what is const or set before that.
/// Shared: by the link and whoever waits for it.
struct NcclBatch {
  NcclBatch(NcclDirection way, std::vector<NcclGroup> what) : direction(way), groups(std::move(what)) {}

  const NcclDirection direction;
  std::vector<NcclGroup> groups;
  /// Tells the other end, on this communicator. Null: it was the other end that asked for it. Called by the link's
  /// thread without a lock; false: there is no other end any more.
  std::function<bool(uint64_t number)> announce;
  /// Whether any of it still is wanted. There where `announce` is. Called by the link's thread without a lock, where it is
  /// hurried before it is announced.
  std::function<bool()> is_wanted;
  /// Copies a group on from where it landed to where its pieces belong, one accepted piece behind the other. Called by the
  /// link's thread without a lock, when the group is there and before it counts as done. Null: it is sent from, or received
  /// to, where its pieces are.
  std::function<void(const NcclGroup& group)> land;
  /// The end. `whole`: all groups have passed, and the other end has told its verdict. Called once, by the link's
  /// thread, without a lock.
  std::function<void(bool whole)> ended;

  uint64_t number = 0;            // of the communicator; 0 until announced
  bool admitted = false;          // the other end takes part
  std::vector<uint8_t> accepted;  // by lease: whether its pieces travel
  bool concluded = false;         // the verdict is here
  bool hurried = false;           // it is not waited for long
  bool over = false;
  size_t num_posted = 0, num_done = 0;  // groups
  absl::Time posted_at;
};
using NcclBatchPtr = std::shared_ptr<NcclBatch>;

/// What NCCL takes at once of loads, so that the patience of either end is of so much: 3 ms at 10 GB/s.
inline constexpr int64_t kNcclGroupBytes = 32ll << 20;

/// The groups of a batch, at either end the same: a layer of a stream each, of which the first may be empty, else pieces
/// up to kNcclGroupBytes, of a store up to kMaxNcclStoreBytes. `address`: of the memory here of a piece, of its layer; arrival `layers` is
/// layer 0 again.
std::vector<NcclGroup> MakeNcclGroups(const NcclBatchMessage& message,
                                      const std::function<uint64_t(size_t piece, int64_t arrival)>& address);

}  // namespace swiftcache::engine::transport::nccl
