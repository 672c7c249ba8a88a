// SPDX-License-Identifier: Apache-2.0
// An engine's KV memory on a GPU: one run of device addresses, reserved once, under which lie chunks of physical memory
// that can be shown to other processes, and exchanged, one by one.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<CudaArena> arena,
//                    CudaArena::Create({.bytes = bytes, .block_bytes = layout.block_bytes(), .shared = true}, driver));
//   ASSIGN_OR_RETURN(memory::UniqueFd fd, arena->Export(chunk));     // whoever has it may map the chunk
//   RETURN_IF_ERROR(arena->Remap(chunk));                            // and what they have mapped is ours no more
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/device_address.h"
#include "engine/memory/arena.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::backend::cuda {

/// Block i lies at [i * block_bytes, (i + 1) * block_bytes) and may straddle chunks, since their addresses are adjacent.
/// Zeroed at the start.
///
/// Whoever imports a chunk chooses how to map it: nothing but its own good will keeps another engine from writing to it,
/// or from reading all of it, beyond what it was lent. Engines that show memory to each other trust each other with that.
///
/// Thread-safety: safe, but for Remap: one at a time. A descriptor is of what the chunk was or of what it has become.
/// Nothing is asked of the driver under the lock: Export never waits for Remap, which may take long. Ownership: owns
/// addresses and memory; borrows the driver, which outlives it. Errors: as named. Units: bytes.
class CudaArena {
 public:
  /// Their descriptors, and one more, fit into one message over a Unix socket.
  static constexpr int64_t kMaxChunks = memory::Arena::kMaxChunks;
  struct Options {
    int64_t bytes = 0;                 // whole blocks of it are used
    int64_t block_bytes = 0;           // > 0
    bool shared = false;               // may be shown to other processes
    int64_t chunk_bytes = 16ll << 20;  // at least; rounded up to what the driver deals in
  };
  struct Chunk {
    int64_t offset = 0;  // in the arena
    int64_t bytes = 0;
  };
  /// INVALID_ARGUMENT: less than one block, or more than a BlockId can name; RESOURCE_EXHAUSTED: more than the GPU has
  /// free; FAILED_PRECONDITION: shared, on a driver that exports nothing; else the driver's.
  static absl::StatusOr<std::unique_ptr<CudaArena>> Create(const Options& options, Driver& driver);
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;
  /// REQUIRES: no work that touches it is under way.
  ~CudaArena();

  DeviceAddress base() const { return ToDeviceAddress(base_); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t num_blocks() const { return num_blocks_; }
  /// Whole chunks: the blocks and what is left of the last chunk.
  int64_t mapped_bytes() const { return mapped_bytes_; }
  bool shared() const { return shared_; }
  /// In order of their offsets, without gaps, all of one size but the last.
  const std::vector<Chunk>& chunks() const { return chunks_; }

  /// A descriptor of the chunk's memory as it is now, for Driver::Import. REQUIRES: shared().
  absl::StatusOr<memory::UniqueFd> Export(size_t chunk) const ABSL_LOCKS_EXCLUDED(mutex_);

  /// Other, zeroed memory for the chunk: what was in it is gone, and whoever has imported it sees of the arena no more
  /// than it saw before. The old memory is the driver's again when the last of those has unmapped it, so that until then
  /// the GPU holds both. DATA_LOSS: the chunk has no memory, or none that is zeroed, and is not to be used unless another
  /// Remap of it succeeds. Other errors (RESOURCE_EXHAUSTED): nothing has changed.
  /// REQUIRES: no work that touches the chunk is under way, nothing in it is in use or lent.
  absl::Status Remap(size_t chunk) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Memory;
  CudaArena(const Options& options, Driver& driver, int64_t mapped_bytes)
      : driver_(driver),
        block_bytes_(options.block_bytes),
        num_blocks_(options.bytes / options.block_bytes),
        mapped_bytes_(mapped_bytes),
        shared_(options.shared) {}
  absl::Status Fill(int64_t chunk_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<const Memory>> Allocate(int64_t bytes);
  absl::Status Map(const Chunk& chunk, const Memory& memory);
  absl::Status Zero(const Chunk& chunk);

  Driver& driver_;
  const int64_t block_bytes_, num_blocks_, mapped_bytes_;
  const bool shared_;
  uint64_t base_ = 0;          // 0: nothing is reserved
  std::vector<Chunk> chunks_;  // as many as have been mapped
  mutable absl::Mutex mutex_;
  // Of chunks_; null: it was lost. Shared with an Export under way while Remap exchanges it.
  std::vector<std::shared_ptr<const Memory>> memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::backend::cuda
