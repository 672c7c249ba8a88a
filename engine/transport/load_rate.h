// SPDX-License-Identifier: Apache-2.0
// How fast loads come over a link, as those that have come show it.
//
//   rate.Note(/*bytes=*/4 << 20, absl::Microseconds(160));
//   if (const std::optional<double> known = rate.bytes_per_second()) ...
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace swiftcache::engine::transport {

/// The fastest load so far, each by the time from its begin to its end: none is taken for faster than it was, and one that
/// waited for nothing is the link's. A mean would tell of latencies and of what was in the way. Of a small load nearly all
/// is latency: it does not count; and the first few may all have been held up: nothing is known until more have come. The
/// fastest stays so for ever, from whichever donor.
/// Thread-safety: none. Ownership: a value. Errors: none. Units: bytes a second.
class LoadRate {
 public:
  static constexpr int64_t kLeastBytes = 2 << 20;  // of a load that counts
  static constexpr int64_t kLeastLoads = 8;        // without which nothing is known

  /// Of a load that came whole.
  void Note(int64_t bytes, absl::Duration time) {
    if (bytes < kLeastBytes || time <= absl::ZeroDuration()) return;
    ++loads_;
    fastest_ = std::max(fastest_, static_cast<double>(bytes) / absl::ToDoubleSeconds(time));
  }
  std::optional<double> bytes_per_second() const {
    return loads_ < kLeastLoads ? std::nullopt : std::optional(fastest_);
  }

 private:
  int64_t loads_ = 0;
  double fastest_ = 0;
};

}  // namespace swiftcache::engine::transport
