// SPDX-License-Identifier: Apache-2.0
// Who waits while there is a reason to, but not for ever.
//
//   if (wait.Goes(borrowing.saves_blocks(), clock.Now(), revoke_deadline)) return;  // later
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none. Ownership: a value. Errors: none.
class LimitedWait {
 public:
  /// True while there is a reason, for less than `limit` in a row; then false until there is none, or End.
  bool Goes(bool has_reason, absl::Time now, absl::Duration limit) {
    since_ = has_reason ? std::min(since_, now) : absl::InfiniteFuture();
    return has_reason && now - since_ < limit;
  }
  void End() { since_ = absl::InfiniteFuture(); }

 private:
  absl::Time since_ = absl::InfiniteFuture();
};

}  // namespace swiftcache::engine::exec
