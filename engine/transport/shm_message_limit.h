// SPDX-License-Identifier: Apache-2.0
// A rate limit on a peer's messages: renewals, revocations and their answers cost their receiver an event each.
#pragma once

#include "absl/time/time.h"

namespace swiftcache::engine::transport {

/// Thread-safety: none. Errors: none.
class ShmMessageLimit {
 public:
  // Honest peers need a few; a borrower that has 4,096 leases, each renewed three times in 10 s, a thousand and a half.
  static constexpr int kMostASecond = 2000;

  /// False: this message is one too many in this second.
  bool Allow(absl::Time now) {
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      messages_ = 0;
    }
    return ++messages_ <= kMostASecond;
  }

 private:
  absl::Time second_ = absl::InfinitePast();
  int messages_ = 0;
};

}  // namespace swiftcache::engine::transport
