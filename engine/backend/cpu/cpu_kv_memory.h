// SPDX-License-Identifier: Apache-2.0
// KV memory of a CPU: an arena, in which what is asked happens at once.
//
//   ASSIGN_OR_RETURN(memory::Arena arena, memory::Arena::Create({.bytes = bytes, .block_bytes = block_bytes}));
//   CpuKvMemory kv(std::move(arena));
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/units.h"
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
  int64_t page_bytes() const override { return arena_.page_bytes(); }
  Fence Zero(std::span<const ByteRange> ranges) override;
  Fence Copy(std::span<const ByteMove> moves) override;
  /// As was measured of what it zeroed.
  int64_t bytes_in_a_millisecond() const override { return bytes_in_a_millisecond_; }

  /// For a transport that shows it to other processes.
  memory::Arena& arena() { return arena_; }

 private:
  std::byte* Bytes(DeviceAddress begin, int64_t bytes) const;
  void Measure(int64_t bytes, absl::Duration took);

  memory::Arena arena_;
  const AddressSpace space_;
  const RealClock clock_;                      // what is measured is the machine, whoever keeps the time above it
  int64_t bytes_in_a_millisecond_ = 4 * kMiB;  // until it is measured: slow memory
};

}  // namespace swiftcache::engine::backend::cpu
