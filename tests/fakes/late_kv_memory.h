// SPDX-License-Identifier: Apache-2.0
// KV memory of a device that does things when it gets to them.
//
//   auto memory = MakeLateKvMemory({.bytes = bytes, .block_bytes = block_bytes}, &queue,
//                                  AddressSpace(LateKvMemory::kTurnedBits));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/address_space.h"
#include "engine/backend/cpu/cpu_kv_memory.h"
#include "engine/backend/kv_memory.h"
#include "engine/memory/arena.h"
#include "glog/logging.h"
#include "tests/fakes/late_queue.h"

namespace swiftcache {

/// Thread-safety, errors: KvMemory's. Ownership: owns the memory that does it, borrows the queue.
class LateKvMemory final : public engine::backend::KvMemory {
 public:
  /// With these no address is one that a machine has: whoever takes one for a pointer crashes.
  static constexpr uint64_t kTurnedBits = uint64_t{0x5A} << 56;

  LateKvMemory(std::unique_ptr<engine::backend::KvMemory> memory, LateQueue* queue)
      : memory_(std::move(memory)), queue_(*queue) {}
  ~LateKvMemory() override { queue_.Submitted().Wait(); }

  engine::backend::DeviceAddress base() const override { return memory_->base(); }
  int64_t bytes() const override { return memory_->bytes(); }
  int64_t page_bytes() const override { return memory_->page_bytes(); }
  engine::backend::Fence Zero(std::span<const engine::backend::ByteRange> ranges) override {
    const auto zero = [this, ranges = std::vector(ranges.begin(), ranges.end())] { (void)memory_->Zero(ranges); };
    if (zeroes_late) {
      queue_.SubmitBehind(3, zero);
    } else {
      queue_.Submit(zero);
    }
    return queue_.Submitted();
  }
  engine::backend::Fence Copy(std::span<const engine::backend::ByteMove> moves) override {
    queue_.Submit([this, moves = std::vector(moves.begin(), moves.end())] { (void)memory_->Copy(moves); });
    return queue_.Submitted();
  }
  int64_t bytes_in_a_millisecond() const override { return pace; }
  int64_t pace = 4 << 20;
  /// Plants a bug: a block is zeroed when its new owner has written already.
  bool zeroes_late = false;

  /// For whoever plays the hardware. REQUIRES: a CPU's memory does it.
  engine::memory::Arena& arena() { return static_cast<engine::backend::cpu::CpuKvMemory&>(*memory_).arena(); }

 private:
  const std::unique_ptr<engine::backend::KvMemory> memory_;
  LateQueue& queue_;
};

inline std::unique_ptr<LateKvMemory> MakeLateKvMemory(const engine::memory::Arena::Options& options, LateQueue* queue,
                                                      const engine::backend::AddressSpace& space) {
  auto arena = engine::memory::Arena::Create(options);
  CHECK(arena.ok()) << arena.status();
  return std::make_unique<LateKvMemory>(std::make_unique<engine::backend::cpu::CpuKvMemory>(*std::move(arena), space),
                                        queue);
}

}  // namespace swiftcache
