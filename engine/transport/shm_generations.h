// SPDX-License-Identifier: Apache-2.0
// The donor's generation page: one word per live grant, which borrowers read and only the donor writes.
//
//   ASSIGN_OR_RETURN(auto words, ShmGenerations::Create());
//   std::optional<int32_t> word = words.Take();  Epoch epoch = words.Advance(*word);         // granted
//   words.Advance(*word);  words.Return(*word);                                              // fenced
//
// Layout of the memory, all of it words:  offset 8 * i   u64   generation of grant word i, from 0, never counting down.
// A word that comes back goes on counting for the next grant, so that no two grants ever share word and epoch.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/lease_id.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::transport {

static_assert(sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free);

/// Thread-safety: none; borrowers' reads need none. Ownership: owns the memory. Errors: Create: those of
/// memory::CreateSealedMemory.
class ShmGenerations {
 public:
  static constexpr int32_t kWords = 4096;  // 32 KiB; as many as the broker lets an engine lend on
  static absl::StatusOr<ShmGenerations> Create();

  /// A word that no grant uses, or nothing.
  std::optional<int32_t> Take();
  /// The word's next generation. What the caller, or anybody whom it tells, writes afterwards cannot be seen by a
  /// borrower that does not also see this (LeaseView::Holds has the other half).
  kv::Epoch Advance(int32_t word);
  void Return(int32_t word) { free_.push_back(word); }
  /// Read-only, for borrowers.
  int fd() const { return fd_.get(); }

 private:
  ShmGenerations(memory::Mapping memory, memory::UniqueFd fd);

  memory::Mapping memory_;
  memory::UniqueFd fd_;
  std::vector<int32_t> free_;
};

}  // namespace swiftcache::engine::transport
