// SPDX-License-Identifier: Apache-2.0
// The inner loop of byte-pair encoding: merges the neighbouring pair with the lowest rank, the leftmost of equal ones,
// until no pair can be merged.
//
//   PairMerges merges;
//   merges.Add(h, e, /*rank=*/0, he);
//   PairMerges::Scratch scratch;
//   merges.Run(&symbols, &scratch);   // {h, e, y} becomes {he, y}
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace swiftcache::gateway::text {

/// O(n log n) in the number of symbols, up to 32 bytes of memory for each.
/// Thread-safety: immutable once filled; each call has its own Scratch. Errors: none.
class PairMerges {
 public:
  /// Reusable memory of one thread.
  struct Scratch {
    std::vector<int32_t> next, previous;
    std::vector<uint64_t> sorted, heap;
  };

  void Reserve(int64_t pairs) { merges_.reserve(pairs); }
  /// The first merge added for a pair stays. REQUIRES: left, right, rank, result >= 0.
  void Add(int32_t left, int32_t right, int32_t rank, int32_t result) {
    merges_.try_emplace(Key(left, right), Merge{rank, result});
  }
  /// REQUIRES: symbols >= 0, fewer than 2^31 of them.
  void Run(std::vector<int32_t>* symbols, Scratch* scratch) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t result = 0;
  };
  class Session;

  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* Find(int32_t left, int32_t right) const {
    const auto found = merges_.find(Key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace swiftcache::gateway::text
