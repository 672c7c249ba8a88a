// SPDX-License-Identifier: Apache-2.0
// KV memory as an array of values, so that a wrong one is seen: cells of a page, and the generation words beside them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/kv/lease_id.h"

namespace swiftcache::sim {

using engine::kv::LeaseId;

inline constexpr int64_t kCellBytes = 4096;

/// An engine's arena. It outlives its process while a borrower maps it, as a memfd does: hence the shared_ptr to it.
struct Memory {
  std::vector<uint64_t> cells;
  std::vector<uint64_t> generations;  // one word a grant
};

/// A lease as its borrower sees it.
struct View {
  std::shared_ptr<const Memory> memory;
  int64_t first_cell = 0, num_cells = 0;
  size_t slot = 0;
  uint64_t epoch = 0;

  bool Holds() const { return memory->generations[slot] == epoch; }
  uint64_t Read(int64_t cell) const { return memory->cells[first_cell + cell]; }
};

/// What a cell of a block of a sequence holds: no two are alike.
inline uint64_t KvValue(uint64_t engine_life, int64_t sequence, int64_t block, int64_t cell) {
  uint64_t value = engine_life;
  for (int64_t part : {sequence, block, cell}) {
    value = (value ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
    value ^= value >> 29;
  }
  return value;
}

}  // namespace swiftcache::sim
