// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/cuda_arena.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/cuda/event_fence.h"
#include "glog/logging.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int64_t kMostArenaBytes = int64_t{1} << 60;  // room to round up

absl::Status CheckSize(const CudaArena::Options& options) {
  CHECK_GT(options.block_bytes, 0);
  CHECK_GT(options.chunk_bytes, 0);
  const int64_t blocks = std::max<int64_t>(options.bytes, 0) / options.block_bytes;
  if (blocks >= 1 && blocks <= std::numeric_limits<int32_t>::max() && options.bytes <= kMostArenaBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--kv_cache_bytes is ", options.bytes, ", which is ", blocks,
                                                 " blocks of ", options.block_bytes, " bytes; 1 to ",
                                                 std::numeric_limits<int32_t>::max(), " blocks are wanted"));
}

int64_t RoundUp(int64_t bytes, int64_t unit) { return CeilDiv(bytes, unit) * unit; }

void LogFailure(const char* what, const absl::Status& status) {
  LOG_IF(WARNING, !status.ok()) << "while KV memory was given back, " << what << " failed: " << status.message();
}

}  // namespace

// Physical memory, given back with its last owner.
class CudaArena::Memory {
 public:
  Memory(Driver& driver, Allocation allocation) : driver_(driver), allocation_(allocation) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { LogFailure("Release", driver_.Release(allocation_)); }
  Allocation allocation() const { return allocation_; }

 private:
  Driver& driver_;
  const Allocation allocation_;
};

absl::StatusOr<std::unique_ptr<CudaArena>> CudaArena::Create(const Options& options, Driver& driver) {
  RETURN_IF_ERROR(CheckSize(options));
  if (options.shared && !driver.info().exports) {
    return absl::FailedPreconditionError(absl::StrCat("memory of ", driver.info().name, " cannot be shown to other ",
                                                      "processes: start this engine with --transport=nccl or none"));
  }
  const int64_t unit = driver.info().granularity_bytes;
  const int64_t bytes = RoundUp(options.bytes / options.block_bytes * options.block_bytes, unit);
  const int64_t chunk_bytes = RoundUp(std::max(options.chunk_bytes, CeilDiv(bytes, kMaxChunks)), unit);
  std::unique_ptr<CudaArena> arena(new CudaArena(options, driver, bytes));
  ASSIGN_OR_RETURN(arena->base_, driver.ReserveAddresses(bytes));
  const absl::Status filled = arena->Fill(chunk_bytes);
  if (!absl::IsResourceExhausted(filled) && !filled.ok()) return filled;
  if (filled.ok()) return arena;
  return absl::ResourceExhaustedError(absl::StrCat("--kv_cache_bytes wants ", bytes, " bytes of ", driver.info().name,
                                                   " (", filled.message(),
                                                   "): lower --kv_cache_bytes or free memory there"));
}

absl::Status CudaArena::Fill(int64_t chunk_bytes) {
  for (int64_t offset = 0; offset < mapped_bytes_; offset += chunk_bytes) {
    const Chunk chunk = {.offset = offset, .bytes = std::min(chunk_bytes, mapped_bytes_ - offset)};
    ASSIGN_OR_RETURN(std::shared_ptr<const Memory> memory, Allocate(chunk.bytes));
    RETURN_IF_ERROR(Map(chunk, *memory));
    absl::MutexLock lock(&mutex_);
    chunks_.push_back(chunk);
    memory_.push_back(std::move(memory));
  }
  return Zero({.offset = 0, .bytes = mapped_bytes_});
}

absl::StatusOr<std::shared_ptr<const CudaArena::Memory>> CudaArena::Allocate(int64_t bytes) {
  ASSIGN_OR_RETURN(const Allocation allocation, driver_.Allocate(bytes));
  return std::make_shared<const Memory>(driver_, allocation);
}

absl::Status CudaArena::Map(const Chunk& chunk, const Memory& memory) {
  return driver_.Map(base_ + chunk.offset, chunk.bytes, memory.allocation(), Access::kReadWrite);
}

// A stream of its own, which is at its end when this returns: also where its event failed.
absl::Status CudaArena::Zero(const Chunk& chunk) {
  ASSIGN_OR_RETURN(const std::shared_ptr<EventFence> zeroed, EventFence::Create(driver_));
  ASSIGN_OR_RETURN(const Stream stream, driver_.CreateStream());
  absl::Status status = driver_.Zero(stream, base_ + chunk.offset, chunk.bytes);
  if (status.ok()) status = zeroed->Record(stream);
  if (status.ok()) status = zeroed->Synchronize();
  driver_.DestroyStream(stream);
  return status;
}

CudaArena::~CudaArena() {
  if (base_ == 0) return;
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (memory_[i] == nullptr) continue;
    LogFailure("Unmap", driver_.Unmap(base_ + chunks_[i].offset, chunks_[i].bytes));
    memory_[i].reset();
  }
  LogFailure("FreeAddresses", driver_.FreeAddresses(base_, mapped_bytes_));
}

absl::StatusOr<memory::UniqueFd> CudaArena::Export(size_t chunk) const {
  CHECK(shared_ && chunk < chunks_.size());
  std::shared_ptr<const Memory> memory;
  {
    absl::MutexLock lock(&mutex_);
    memory = memory_[chunk];
  }
  if (memory == nullptr) return absl::DataLossError(absl::StrCat("chunk ", chunk, " of the arena has lost its memory"));
  ASSIGN_OR_RETURN(const int fd, driver_.Export(memory->allocation()));
  return memory::UniqueFd(fd);
}

// The fresh memory is there before the old is given up. What happens between the two has no way back: an unmapped chunk
// is no arena's.
absl::Status CudaArena::Remap(size_t chunk) {
  CHECK_LT(chunk, chunks_.size());
  const auto lost = [&](const absl::Status& why) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk, " of the arena has lost its memory: ", why.message()));
  };
  ASSIGN_OR_RETURN(std::shared_ptr<const Memory> fresh, Allocate(chunks_[chunk].bytes));
  bool is_mapped = false;
  {
    absl::MutexLock lock(&mutex_);
    is_mapped = memory_[chunk] != nullptr;
  }
  absl::Status moved = absl::OkStatus();
  if (is_mapped) moved = driver_.Unmap(base_ + chunks_[chunk].offset, chunks_[chunk].bytes);
  if (moved.ok()) moved = Map(chunks_[chunk], *fresh);
  if (!moved.ok()) fresh.reset();
  {
    absl::MutexLock lock(&mutex_);
    memory_[chunk].swap(fresh);
  }
  fresh.reset();  // what was there
  if (!moved.ok()) return lost(moved);
  const absl::Status zeroed = Zero(chunks_[chunk]);
  return zeroed.ok() ? zeroed : lost(zeroed);
}

}  // namespace swiftcache::engine::backend::cuda
