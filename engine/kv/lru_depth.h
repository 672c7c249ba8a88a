// SPDX-License-Identifier: Apache-2.0
// A list of keys in the order of their last use that says how far down each is: a cache that evicts the least recently
// used has what is no deeper than it is large.
//
//   LruDepth list(/*capacity=*/1000);
//   list.Use(a);
//   list.Use(b);
//   list.Of(a) == 2;  list.Of(b) == 1;
//   list.SetNote(a, 7);
//   list.NoteOf(a) == 7;   // until a is used again
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace swiftcache::engine::kv {

/// Forgets keys beyond its capacity. Both calls cost O(log capacity); now and then Use costs O(capacity), once in at
/// least that many calls. Thread-safety: none. Ownership: a value. Errors: none.
class LruDepth {
 public:
  explicit LruDepth(int64_t capacity);

  /// How many keys were used since this one was, itself included; nothing: it was not, or is forgotten.
  std::optional<int64_t> Of(uint64_t key) const;
  void Use(uint64_t key);
  /// A note that stays with a key until its next use; 0: none. Of a key that is forgotten there is none.
  void SetNote(uint64_t key, uint8_t note);
  uint8_t NoteOf(uint64_t key) const;
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }

 private:
  void Count(int32_t slot, int32_t change);
  void Erase(int32_t slot);
  void Renumber();

  const int64_t capacity_;
  absl::flat_hash_map<uint64_t, int32_t> slots_;
  std::vector<uint64_t> keys_;   // by slot, in the order of use
  std::vector<bool> live_;       // by slot
  std::vector<uint8_t> notes_;   // by slot
  std::vector<int32_t> counts_;  // of live slots: a Fenwick tree
  int32_t next_ = 0, oldest_ = 0;
};

}  // namespace swiftcache::engine::kv
