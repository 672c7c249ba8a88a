// SPDX-License-Identifier: Apache-2.0
// KV memory as words, so that a wrong one is seen: cells of a page, and the generation words beside them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/backend/address_space.h"
#include "engine/kv/lease_id.h"

namespace swiftcache::sim {

using engine::kv::LeaseId;

inline constexpr int64_t kCellWords = 8, kCellBytes = kCellWords * 8;
/// Of which a cell is the KV: in two layers, a word of K and one of V each.
inline constexpr int64_t kCellTokens = 2;

/// An engine's arena. It outlives its process while a borrower maps it, as a memfd does: hence the shared_ptr to it.
struct Memory {
  explicit Memory(int64_t num_cells) : words(num_cells * kCellWords) {}
  int64_t num_cells() const { return static_cast<int64_t>(words.size()) / kCellWords; }
  engine::backend::DeviceAddress At(int64_t cell) const {
    return engine::backend::AddressSpace().Of(reinterpret_cast<const std::byte*>(words.data() + cell * kCellWords));
  }

  std::vector<uint64_t> words;
  std::deque<std::atomic<uint64_t>> generations;  // one word a grant; they stay where they are
};

inline uint64_t* WordAt(engine::backend::DeviceAddress address) {
  return reinterpret_cast<uint64_t*>(engine::backend::AddressSpace().Host(address));
}

/// A lease as its borrower sees it.
struct View {
  std::shared_ptr<Memory> memory;  // which its borrower only reads
  int64_t first_cell = 0, num_cells = 0;
  size_t slot = 0;
  uint64_t epoch = 0;

  bool Holds() const { return memory->generations[slot].load() == epoch; }
};

}  // namespace swiftcache::sim
