// SPDX-License-Identifier: Apache-2.0
// KV memory of a CPU: an arena, in which what is asked happens at once.
//
//   ASSIGN_OR_RETURN(memory::Arena arena, memory::Arena::Create({.bytes = bytes, .block_bytes = block_bytes}));
//   CpuKvMemory kv(std::move(arena));
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "engine/backend/address_space.h"
#include "engine/backend/kv_memory.h"
#include "engine/memory/arena.h"

namespace swiftcache::engine::backend::cpu {

/// Thread-safety, errors: KvMemory's. Ownership: owns the arena, which keeps its address.
class CpuKvMemory final : public KvMemory {
 public:
  explicit CpuKvMemory(memory::Arena arena, const AddressSpace& space = {}) : arena_(std::move(arena)), space_(space) {}

  DeviceAddress base() const override { return space_.Of(arena_.base()); }
  int64_t bytes() const override { return arena_.num_blocks() * arena_.block_bytes(); }
  Fence Zero(std::span<const ByteRange> ranges) override;
  Fence Copy(std::span<const ByteMove> moves) override;

  /// For a transport that shows it to other processes.
  memory::Arena& arena() { return arena_; }

 private:
  std::byte* Bytes(DeviceAddress begin, int64_t bytes) const;

  memory::Arena arena_;
  const AddressSpace space_;
};

}  // namespace swiftcache::engine::backend::cpu
