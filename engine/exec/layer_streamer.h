// SPDX-License-Identifier: Apache-2.0
// Layer streaming (SwiftCache 3.3): brings the leased slices of a step into local slots, up to two layers ahead of the
// model, and behind the last layer the first one of the next step.
//
//   streamer.Begin();   // or of layer `first_layer` on, where the step before was cut short and goes on there
//   ...streamer.Add(filling, lease, offset_bytes) for each leased block of the step: its slots, or nothing...
//   streamer.Start(after);
//   for each layer l: streamer.Arrived(l).Wait(); ...read it...; streamer.Release(l, read);
//   std::vector<kv::LeaseId> lost = streamer.End();   // also where the step ended before its last layer
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/device_address.h"
#include "engine/backend/fence.h"
#include "engine/backend/kv_layout.h"
#include "engine/kv/block.h"
#include "engine/kv/layer_stream.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// Two buffers: layer l is read from one while layer l + 1 arrives in the other, under all of layer l (the paper has
/// one buffer, hence FFN time only). New KV is written to the own arena and stored by whole blocks after the step, so a
/// buffer is free as soon as its layer was read.
///
/// What is read in a step is mostly read in the next one, too: while the last layer and what follows it are computed,
/// layer 0 comes once more, for the next step, which finds it (kv::LayerSlots) and waits for no first layer. Nothing is
/// under way between steps. Thread-safety: none, but for fences and stall(). Ownership: borrows the transport, and the
/// memory at `arena`; outlives its fences.
class LayerStreamer {
 public:
  /// Of one block in this step: of its even layers, and of its odd ones.
  using Slots = std::array<backend::DeviceAddress, 2>;

  LayerStreamer(const backend::KvLayout& layout, backend::DeviceAddress arena, transport::Transport* transport,
                const Clock* clock)
      : layout_(layout), arena_(arena), transport_(transport), clock_(clock) {
    SetSlots({});
  }

  /// The local blocks that slots lie in; between steps.
  void SetSlots(std::span<const int32_t> places) { slots_.emplace(places, layout_.num_layers); }

  /// Blocks that a step can stream.
  int64_t capacity() const { return slots_->capacity(); }

  /// Of a step that goes on: its first `first_layer` layers are not read any more, and layer 0 does not come again.
  void Begin(int64_t first_layer = 0);
  /// Where its layers will lie; the same for every sequence that shares the block. Nothing: the slots are used up.
  std::optional<Slots> Add(kv::Filling filling, kv::LeaseId lease, int64_t offset_bytes);
  bool empty() const { return spec_.sources.empty(); }
  /// Sends everything that was added on its way; the slots are written when `after` has passed.
  void Start(const backend::Fence& after);
  backend::Fence Arrived(int64_t layer);
  void Release(int64_t layer, const backend::Fence& read);
  /// Leases that are known to have changed hands while they were copied, so far.
  std::vector<kv::LeaseId> Lost() const;
  /// Waits for what is still on its way: from here on nobody writes to the slots. All leases that were lost.
  std::vector<kv::LeaseId> End();

  /// Time that the host waited for a layer to arrive, or in End, since the start: where a device waits by itself
  /// (FenceState::stands_for) there is none. Any thread.
  absl::Duration stall() const { return absl::Nanoseconds(stall_ns_.load(std::memory_order_relaxed)); }

 private:
  struct Waited;  // an arrival whose waiting is measured

  // That is still read.
  int64_t first_layer() const { return layout_.num_layers - spec_.num_layers; }
  backend::DeviceAddress AddressOf(int64_t stream, int64_t layer) const;
  void NoteStall(absl::Time begin);

  const backend::KvLayout layout_;
  const backend::DeviceAddress arena_;
  transport::Transport* const transport_;
  const Clock* const clock_;
  std::optional<kv::LayerSlots> slots_;             // always there; set anew
  transport::StreamSpec spec_;                      // of the layers that are still read
  std::vector<int64_t> streams_;                    // of its sources, in `slots_`
  int64_t num_released_ = 0;                        // layers, since Start
  std::unique_ptr<transport::SliceStream> stream_;  // from Start to End
  std::atomic<int64_t> stall_ns_{0};
};

}  // namespace swiftcache::engine::exec
