// SPDX-License-Identifier: Apache-2.0
// Which blocks changed places lately, for whoever keeps what was made from their places.
//
//   log.Note(id);
//   for (uint64_t i = seen; i < log.end(); ++i) Update(log[i]);   // as long as log.end() - seen <= PlaceLog::kKept
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/block.h"

namespace swiftcache::engine::kv {

/// The last kKept changes. Thread-safety: none. Ownership: a value. Errors: none.
class PlaceLog {
 public:
  static constexpr uint64_t kKept = 1024;

  void Note(BlockId id) { ids_[end_++ % kKept] = id; }
  /// How many were noted, ever.
  uint64_t end() const { return end_; }
  /// REQUIRES: end() - kKept <= i < end().
  BlockId operator[](uint64_t i) const { return ids_[i % kKept]; }

 private:
  std::vector<BlockId> ids_ = std::vector<BlockId>(kKept);
  uint64_t end_ = 0;
};

/// How far somebody has followed where the blocks of a table lie (KvCache::FollowPlaces). Thread-safety: a value.
struct PlaceCursor {
  uint64_t table = 0;    // which filling of which table
  int64_t blocks = 0;    // of it
  uint64_t changes = 0;  // of places
};

}  // namespace swiftcache::engine::kv
