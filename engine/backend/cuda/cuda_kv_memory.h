// SPDX-License-Identifier: Apache-2.0
// KV memory of a GPU: an arena, in which what is asked happens in the order of the computing stream.
//
//   ASSIGN_OR_RETURN(auto arena, CudaArena::Create({.bytes = bytes, .block_bytes = block_bytes}, driver));
//   CudaKvMemory kv(std::move(arena), driver, stream, /*lends_chunks=*/false);
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/base/units.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/step_fence.h"
#include "engine/backend/kv_memory.h"

namespace swiftcache::engine::backend::cuda {

/// Thread-safety, errors: KvMemory's; the fence of what the driver refused does not pass. Ownership: owns the arena,
/// borrows driver and stream.
class CudaKvMemory final : public KvMemory {
 public:
  /// `lends_chunks`: pages are whole chunks, so that what is lent can be exchanged.
  CudaKvMemory(std::unique_ptr<CudaArena> arena, Driver& driver, Stream stream, bool lends_chunks)
      : arena_(std::move(arena)),
        driver_(driver),
        stream_(stream),
        page_bytes_(lends_chunks ? arena_->chunks().front().bytes : driver.info().granularity_bytes),
        fences_(driver, stream) {}
  ~CudaKvMemory() override { driver_.Finish(stream_); }

  DeviceAddress base() const override { return arena_->base(); }
  int64_t bytes() const override { return arena_->num_blocks() * arena_->block_bytes(); }
  int64_t page_bytes() const override { return page_bytes_; }
  Fence Zero(std::span<const ByteRange> ranges) override;
  Fence Copy(std::span<const ByteMove> moves) override;
  /// Half of what the slowest GPU that is supported writes: it is used up seldom, and then a step waits for it.
  int64_t bytes_in_a_millisecond() const override { return 256 * kMiB; }

  /// For a transport that shows it to other processes.
  CudaArena& arena() { return *arena_; }

 private:
  uint64_t NumberIn(DeviceAddress begin, int64_t bytes) const;

  const std::unique_ptr<CudaArena> arena_;
  Driver& driver_;
  const Stream stream_;
  const int64_t page_bytes_;
  StepFences fences_;
};

}  // namespace swiftcache::engine::backend::cuda
