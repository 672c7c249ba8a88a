// SPDX-License-Identifier: Apache-2.0
// How much a peer may talk: renewals, revocations and their answers cost the hearer an event each.
#pragma once

#include "absl/time/time.h"

namespace swiftcache::engine::transport {

/// Thread-safety: none. Errors: none.
class ShmChatter {
 public:
  static constexpr int kMostASecond = 200;  // honest peers need a few

  /// Whether one more message is still talk, and not a flood.
  bool Allow(absl::Time now) {
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      said_ = 0;
    }
    return ++said_ <= kMostASecond;
  }

 private:
  absl::Time second_ = absl::InfinitePast();
  int said_ = 0;
};

}  // namespace swiftcache::engine::transport
