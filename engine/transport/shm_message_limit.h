// SPDX-License-Identifier: Apache-2.0
// A rate limit on a peer's messages: renewals, revocations and their answers cost their receiver an event each.
#pragma once

#include "absl/time/time.h"

namespace swiftcache::engine::transport {

/// Thread-safety: none. Errors: none.
class ShmMessageLimit {
 public:
  static constexpr int kMostASecond = 200;  // honest peers need a few

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
