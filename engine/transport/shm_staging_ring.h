// SPDX-License-Identifier: Apache-2.0
// Where in a borrower's staging memory the next store waits for its donor: a ring of runs, freed in their order.
//
//   if (auto offset = ring.Push(bytes)) std::memcpy(staging + *offset, from, bytes);      // ... and later ring.Pop()
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace swiftcache::engine::transport {

/// Thread-safety: none. Errors: none. Units: bytes.
class ShmStagingRing {
 public:
  explicit ShmStagingRing(int64_t bytes = 0) : bytes_(bytes) {}

  /// A free run of `bytes` that does not wrap, or nothing where there is none until a Pop. REQUIRES: bytes > 0.
  std::optional<int64_t> Push(int64_t bytes) {
    const std::optional<int64_t> offset = Find(bytes);
    if (offset) runs_.push_back({*offset, *offset + bytes});
    return offset;
  }
  bool HasRoom(int64_t bytes) const { return Find(bytes).has_value(); }
  /// Frees the oldest run. REQUIRES: there is one.
  void Pop() { runs_.pop_front(); }

 private:
  struct Run {
    int64_t begin, end;
  };

  std::optional<int64_t> Find(int64_t bytes) const {
    const int64_t oldest = runs_.empty() ? 0 : runs_.front().begin;
    const int64_t next = runs_.empty() ? 0 : runs_.back().end;
    const bool wrapped = !runs_.empty() && runs_.back().begin < oldest;
    if (bytes <= (wrapped ? oldest : bytes_) - next) return next;
    if (!wrapped && bytes <= oldest) return 0;
    return std::nullopt;
  }

  int64_t bytes_;
  std::deque<Run> runs_;
};

}  // namespace swiftcache::engine::transport
