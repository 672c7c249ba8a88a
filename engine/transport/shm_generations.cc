// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_generations.h"

#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::engine::transport {

absl::StatusOr<ShmGenerations> ShmGenerations::Create() {
  constexpr int64_t kBytes = kWords * sizeof(uint64_t);
  ASSIGN_OR_RETURN(memory::Mapping memory, memory::Mapping::Reserve(kBytes));
  ASSIGN_OR_RETURN(memory::UniqueFd fd, memory::CreateSealedMemory("swiftcache-generations", memory.base(), kBytes));
  return ShmGenerations(std::move(memory), std::move(fd));
}

ShmGenerations::ShmGenerations(memory::Mapping memory, memory::UniqueFd fd)
    : memory_(std::move(memory)), fd_(std::move(fd)) {
  for (int32_t word = kWords - 1; word >= 0; --word) free_.push_back(word);
}

std::optional<int32_t> ShmGenerations::Take() {
  if (free_.empty()) return std::nullopt;
  const int32_t word = free_.back();
  free_.pop_back();
  return word;
}

// The memory is zeroed 64-bit words in another process's sight, which is what a lock-free atomic is.
//
// Why a reader that saw a later byte sees this: the donor does
//     (1) word = g + 1;   (2) full fence;   (3) write bytes of the extent (this thread, or one that it hands the memory
//     to through a mutex: unlock and lock keep 1 before 3 on every machine that we run on)
// and the reader
//     (a) read bytes;     (b) acquire fence;    (c) read word.
// If (a) saw a byte of (3), then (1) came before (3), (3) before (a), (a) before (c): (c) sees g + 1 or later. Stores
// are kept in order by (2), loads by (b). On x86-64 both orders hold by nature and the fences bind the compiler; on
// AArch64, which makes a store visible to all others at once, (2) and (b) are DMB ISH and ISHLD.
kv::Epoch ShmGenerations::Advance(int32_t word) {
  auto* const generation = reinterpret_cast<std::atomic<uint64_t>*>(memory_.base()) + word;
  const uint64_t next = generation->load(std::memory_order_relaxed) + 1;
  generation->store(next, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return kv::Epoch(next);
}

}  // namespace swiftcache::engine::transport
