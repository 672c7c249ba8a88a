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
//     (1) word = g + 1;   (2) full fence;   (3) write bytes of the extent
// and the reader
//     (a) read bytes;     (b) acquire fence;    (c) read word.
// If (a) saw a byte of (3), then (1) came before (3), (3) before (a), (a) before (c): (c) sees g + 1 or later.
//
// Who writes in (3), and what keeps (1) before it:
//   the coordinator, which fences: (2);
//   the thread that exchanges memory and the step loop, which get it from there: a mutex (Mailbox), unlocked after (2) and
//   locked before (3);
//   workers of the loop's ThreadPool, which compute, zero and copy: ThreadPool::ticket_, which the loop stores after it
//   has got the memory, and which a worker reads, and changes, before (3), all of it sequentially consistent.
// Likewise (a) may be a worker of the borrower: its addition to Job::done comes after (a), and the loop has read that
// before (b).
//
// That who wrote is not who fenced asks of the machine that a store which one thread has seen is seen by all (the writer
// saw (1), so the reader of (3) does). x86-64 and AArch64 promise it; C++ does not, nor do POWER and 32-bit ARM: there
// (3) would want a release fence before it. On x86-64 the rest holds by nature and fences bind the compiler (non-temporal
// stores of a worker come after the ticket that it has read, and it fences them before it adds to Job::done); on AArch64
// (2) and (b) are DMB ISH and ISHLD, and the steps between acquire and release.
kv::Epoch ShmGenerations::Advance(int32_t word) {
  auto* const generation = reinterpret_cast<std::atomic<uint64_t>*>(memory_.base()) + word;
  const uint64_t next = generation->load(std::memory_order_relaxed) + 1;
  generation->store(next, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return kv::Epoch(next);
}

}  // namespace swiftcache::engine::transport
