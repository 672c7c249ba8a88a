// SPDX-License-Identifier: Apache-2.0
// A set of places of one region as runs of adjacent ones, split and merged as places come and go.
//
//   ExtentSet free(1000);
//   for (int32_t index : free.Take(8, std::nullopt)) ...   // 0..7
//   free.Remove(900, 100);                                 // a run leaves the set at once, whatever its length
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace swiftcache::engine::kv {

/// Take goes from the head: the tail of an arena stays whole, which is where extents are lent from.
/// Thread-safety: none. Ownership: a value. Errors: inserting what is there and removing what is not is a caller's bug
/// and checked. Units: places; each operation is O(log of the number of places), however long the runs are and however
/// many, and beside that costs its answer; CountWithin costs the runs that it counts.
class ExtentSet {
 public:
  ExtentSet() = default;
  /// 0 to count - 1.
  explicit ExtentSet(int64_t count);

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// True where the whole run is in the set. REQUIRES: count > 0.
  bool Covers(int32_t first, int32_t count) const;
  /// Of the places from `first` to `end` - 1; at most `enough`, where it stops.
  int64_t CountWithin(int32_t first, int32_t end, int64_t enough) const;

  /// Takes `count` places, first those right behind `after`, then the lowest run that holds the rest, then, where no
  /// run is long enough, the lowest places. REQUIRES: count <= size().
  std::vector<int32_t> Take(int64_t count, std::optional<int32_t> after);
  /// REQUIRES: count > 0, none of the run is in the set.
  void Insert(int32_t first, int32_t count = 1);
  /// REQUIRES: Covers(first, count).
  void Remove(int32_t first, int32_t count = 1);
  /// Like Insert, whatever of the run is in the set already. REQUIRES: count > 0.
  void Unite(int32_t first, int32_t count);

  /// First place and length, ascending, never adjacent.
  const std::map<int32_t, int32_t>& extents() const { return extents_; }

 private:
  using Extents = std::map<int32_t, int32_t>;
  void TakeFrom(Extents::iterator extent, int64_t count, std::vector<int32_t>& taken);
  Extents::iterator FirstOfLength(int64_t count);
  Extents::const_iterator Holding(int32_t index) const;
  Extents::iterator Add(int32_t first, int32_t length);
  Extents::iterator Erase(Extents::const_iterator run);
  void NoteLength(int32_t first, int32_t length);

  Extents extents_;
  // A binary tree over the places, the root at 1: how long the run is that begins there, or the longest below.
  std::vector<int32_t> longest_;
  int64_t size_ = 0;
};

}  // namespace swiftcache::engine::kv
