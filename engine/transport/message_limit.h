// SPDX-License-Identifier: Apache-2.0
// A rate limit on a peer's messages: renewals, revocations and their answers cost their receiver an event each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace swiftcache::engine::transport {

/// Thread-safety: none. Errors: none.
class MessageLimit {
 public:
  // Honest peers need a few for each lease; a lease whose time to live is 10 ms is renewed 300 times.
  static constexpr int64_t kMostASecond = 2000;
  static constexpr int64_t kMostOfALease = 10;  // where that is more

  /// False: this message is one too many in this second. `leases`: that the channel is for at present.
  bool Allow(absl::Time now, int64_t leases = 1) {
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      messages_ = most_leases_ = 0;
    }
    most_leases_ = std::max(most_leases_, leases);  // each that ends says so
    return ++messages_ <= std::max(kMostASecond, kMostOfALease * most_leases_);
  }

 private:
  absl::Time second_ = absl::InfinitePast();
  int64_t messages_ = 0, most_leases_ = 0;
};

}  // namespace swiftcache::engine::transport
