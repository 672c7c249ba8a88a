// SPDX-License-Identifier: Apache-2.0
// How many blocks of a table lie in leases.
//
//   if (sequence.leased_blocks.Follow(cache, sequence.blocks) > 0) ...
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/sequence_blocks.h"

namespace swiftcache::engine::kv {

/// Of one table, which may be emptied and filled again. Costs what SequenceBlocks::FollowPlaces does, and not all blocks
/// each time. Thread-safety: none. Ownership: a value. Errors: none.
class LeasedCount {
 public:
  /// Brings it up to date.
  int64_t Follow(const SequenceBlocks& cache, const BlockTable& table) {
    for (; size() > table.size(); in_lease_.pop_back()) count_ -= in_lease_.back();
    cache.FollowPlaces(table, cursor_, [&](int64_t block) {
      if (block == size()) in_lease_.push_back(false);
      const bool in_lease = !cache.place(table[block]).local();
      count_ += in_lease - in_lease_[block];
      in_lease_[block] = in_lease;
    });
    return count_;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(in_lease_.size()); }

  PlaceCursor cursor_;
  std::vector<bool> in_lease_;
  int64_t count_ = 0;
};

}  // namespace swiftcache::engine::kv
