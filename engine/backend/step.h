// SPDX-License-Identifier: Apache-2.0
// What a step computes on: whose rows, where their KV lies, what must hold of leased memory while it is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "engine/backend/device_address.h"
#include "engine/backend/fence.h"

namespace swiftcache::engine::backend {

/// The rows of one sequence in a step: `num_rows` new tokens at positions context_tokens, context_tokens + 1, ...
struct StepSequence {
  int64_t num_rows = 0;
  int64_t context_tokens = 0;  // tokens whose KV is already in the blocks
  /// Where the KV lies: for each block of the sequence, the address of its layer-0 slice (KvLayout), with layer l's at
  /// l * slice_bytes() from there; covers context_tokens + num_rows tokens. The address of nothing: a StreamedBlock.
  std::span<const DeviceAddress> blocks;
};

/// A block whose slices come into slots while the step runs: layer l's lies at slots[l % 2] from when LayerGate::Arrived
/// has passed until Read's fence has. Only read, never written.
struct StreamedBlock {
  int64_t block = 0;  // counted over the blocks of all sequences of the step
  DeviceAddress slots[2];
};

/// The word by which a lease's owner says whose its memory is, and what it was when the memory was granted.
struct WordCheck {
  const std::atomic<uint64_t>* word = nullptr;
  uint64_t granted = 0;

  /// True: everything read of the lease before this call was what it promises. A sequence lock: the owner changes the
  /// word before it, or anybody after it, writes the memory; the fence keeps the reads above from passing the load
  /// below. Hence a reader that saw one new byte sees the new word.
  bool Holds() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return word->load(std::memory_order_relaxed) == granted;
  }
};

/// Who hears of a step layer by layer. Called by the thread that submits the step, in the order of layers; on a device
/// that computes late that is before the layer is computed. There a step is stopped only while it is submitted, so that
/// whoever revokes what it reads waits for the whole step, or loses it: the tokens of a step bound how long.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  /// The streamed slices of the layer are in their slots when it has passed. Asked for between the layer's QKV product
  /// and its attention, so that loading hides behind the former too.
  virtual Fence Arrived(int64_t layer) = 0;
  /// `read`: the layer's attention has read them. False: nobody wants the rest of the step; a device that can stops
  /// here, and says so.
  virtual bool Read(int64_t layer, const Fence& read) = 0;
  /// Asked between the products behind that attention. False: as of Read.
  virtual bool Wanted() { return true; }
};

}  // namespace swiftcache::engine::backend
