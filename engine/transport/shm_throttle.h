// SPDX-License-Identifier: Apache-2.0
// One direction of a link that is slower than memory: says when bytes that start now would have arrived.
//
//   ShmThrottle link({.gbps = 200, .latency = absl::Microseconds(5)});
//   const absl::Time arrives = link.Carry(bytes, clock.Now());
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace swiftcache::engine::transport {

/// Thread-safety: none. Errors: none. Units: as named.
class ShmThrottle {
 public:
  struct Options {
    double gbps = 0;  // Gbit/s; 0: as fast as memory
    absl::Duration latency;
  };
  explicit ShmThrottle(const Options& options) : options_(options) {}

  /// Bytes follow each other at the link's rate; their latencies overlap.
  absl::Time Carry(int64_t bytes, absl::Time now) {
    if (options_.gbps <= 0) return now + options_.latency;
    free_at_ = std::max(free_at_, now) + absl::Nanoseconds(8.0 * static_cast<double>(bytes) / options_.gbps);
    return free_at_ + options_.latency;
  }

 private:
  Options options_;
  absl::Time free_at_ = absl::InfinitePast();
};

}  // namespace swiftcache::engine::transport
