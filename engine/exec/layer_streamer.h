// SPDX-License-Identifier: Apache-2.0
// Layer streaming (SwiftCache 3.3): brings the leased slices of a step into local slots, one layer ahead of the model.
//
//   streamer.Begin();
//   ...streamer.Add(block, lease, offset_bytes) for each leased block of the step: its stream, or nothing...
//   streamer.Prefetch(0);
//   for each layer l: lost = streamer.Arrive(l); streamer.Prefetch(l + 1); ...run layer l on streamer.Slice(stream, l)
//   streamer.End();   // also where the step ended before its last layer
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/kv_layout.h"
#include "engine/kv/arena.h"
#include "engine/kv/block.h"
#include "engine/kv/layer_stream.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// Two buffers: layer l is read from one while layer l + 1 arrives in the other, under all of layer l (the paper has
/// one buffer, hence FFN time only). New KV is written to the own arena and stored by whole blocks after the step, so a
/// buffer is free as soon as its layer is done. Thread-safety: none. Ownership: borrows arena and transport.
class LayerStreamer {
 public:
  LayerStreamer(const backend::KvLayout& layout, const kv::Arena* arena, transport::Transport* transport,
                const Clock* clock)
      : layout_(layout), arena_(arena), transport_(transport), clock_(clock) {
    SetSlots({});
  }

  /// The local blocks that slots lie in; between steps.
  void SetSlots(std::span<const int32_t> places) { slots_.emplace(places, layout_.num_layers); }

  void Begin();
  /// Nothing: the slots are used up.
  std::optional<int64_t> Add(kv::BlockId block, kv::LeaseId lease, int64_t offset_bytes);
  bool empty() const { return sources_.empty(); }
  void Prefetch(int64_t layer);
  /// Waits for the layer; returns the leases whose memory changed hands while it was copied.
  std::vector<kv::LeaseId> Arrive(int64_t layer);
  /// Waits for what is still on its way: from here on nobody writes to the slots.
  void End();
  std::byte* Slice(int64_t stream, int64_t layer) const;
  int64_t slice_bytes() const { return layout_.slice_bytes(); }

  /// Time that Arrive waited, since the start.
  absl::Duration stall() const { return stall_; }

 private:
  struct Source {
    kv::LeaseId lease;
    int64_t offset_bytes = 0;
  };
  const backend::KvLayout layout_;
  const kv::Arena* const arena_;
  transport::Transport* const transport_;
  const Clock* const clock_;
  std::optional<kv::LayerSlots> slots_;  // always there; set anew
  std::vector<Source> sources_;          // by stream
  std::optional<transport::Ticket> under_way_;
  absl::Duration stall_;
};

}  // namespace swiftcache::engine::exec
