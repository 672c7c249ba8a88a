// SPDX-License-Identifier: Apache-2.0
// The engine's own KV memory as those see it who change it between steps.
//
//   DeviceAddress block = own.At(place.index);
//   std::vector<ByteRange> ranges = {{block, own.block_bytes()}};
//   Fence zeroed = own.Zero(ranges);
//   transport.Load({{.lease = lease, .bytes = own.block_bytes(), .to = block}}, own.last_change());
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "engine/backend/device_address.h"
#include "engine/backend/fence.h"
#include "engine/backend/kv_memory.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none; the step loop owns it. Ownership: borrows the memory. Errors: none. Units: bytes.
class OwnMemory {
 public:
  OwnMemory(backend::KvMemory* memory, int64_t block_bytes) : memory_(memory), block_bytes_(block_bytes) {}

  int64_t block_bytes() const { return block_bytes_; }
  /// Where a block of the own arena lies.
  backend::DeviceAddress At(int32_t place) const { return memory_->base() + place * block_bytes_; }

  backend::Fence Zero(std::span<const backend::ByteRange> ranges) { return last_change_ = memory_->Zero(ranges); }
  backend::Fence Copy(std::span<const backend::ByteMove> moves) { return last_change_ = memory_->Copy(moves); }
  /// A step that writes to it was submitted; `done` is behind all that was asked here before.
  void NoteStep(backend::Fence done) { last_change_ = std::move(done); }
  /// Behind it all is done that was asked here and that the steps write. Who copies from or to this memory in another
  /// way begins after it.
  const backend::Fence& last_change() const { return last_change_; }
  int64_t bytes_in_a_millisecond() const { return memory_->bytes_in_a_millisecond(); }

 private:
  backend::KvMemory* const memory_;
  const int64_t block_bytes_;
  backend::Fence last_change_;
};

}  // namespace swiftcache::engine::exec
