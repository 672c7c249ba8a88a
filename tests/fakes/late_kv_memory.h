// SPDX-License-Identifier: Apache-2.0
// KV memory of a device that does things when it gets to them.
//
//   LateKvMemory memory(bytes, &queue, AddressSpace(LateKvMemory::kTurnedBits));
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/backend/address_space.h"
#include "engine/backend/kv_memory.h"
#include "glog/logging.h"
#include "tests/fakes/late_queue.h"

namespace swiftcache {

/// Thread-safety, errors: KvMemory's. Ownership: owns the bytes, borrows the queue.
class LateKvMemory final : public engine::backend::KvMemory {
 public:
  /// With these no address is one that a machine has: whoever takes one for a pointer crashes.
  static constexpr uint64_t kTurnedBits = uint64_t{0x5A} << 56;

  LateKvMemory(int64_t bytes, LateQueue* queue, engine::backend::AddressSpace space)
      : bytes_(bytes), queue_(*queue), space_(space) {}
  ~LateKvMemory() override { queue_.Submitted().Wait(); }

  engine::backend::DeviceAddress base() const override { return space_.Of(bytes_.data()); }
  int64_t bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  engine::backend::Fence Zero(std::span<const engine::backend::ByteRange> ranges) override {
    const auto zero = [this, ranges = std::vector(ranges.begin(), ranges.end())] {
      for (const auto& range : ranges) std::memset(At(range.begin, range.bytes), 0, range.bytes);
    };
    if (zeroes_late) {
      queue_.SubmitBehind(3, zero);
    } else {
      queue_.Submit(zero);
    }
    return queue_.Submitted();
  }
  engine::backend::Fence Copy(std::span<const engine::backend::ByteMove> moves) override {
    queue_.Submit([this, moves = std::vector(moves.begin(), moves.end())] {
      for (const auto& move : moves) std::memcpy(At(move.to, move.bytes), At(move.from, move.bytes), move.bytes);
    });
    return queue_.Submitted();
  }
  /// Plants a bug: a block is zeroed when its new owner has written already.
  bool zeroes_late = false;

  /// For whoever plays the hardware.
  std::byte* host() { return bytes_.data(); }

 private:
  std::byte* At(engine::backend::DeviceAddress address, int64_t bytes) {
    CHECK(address - base() >= 0 && address - base() + bytes <= this->bytes());
    return space_.Host(address);
  }

  std::vector<std::byte> bytes_;
  LateQueue& queue_;
  const engine::backend::AddressSpace space_;
};

}  // namespace swiftcache
