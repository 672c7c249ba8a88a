// SPDX-License-Identifier: Apache-2.0
// How much memory donors took back in the last second: so much they may take again before a wish is granted.
//
//   taken.Note(region_blocks, clock.Now());
//   cache.TakeLeaseWish(/*margin=*/taken.blocks(clock.Now()));
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none. Ownership: a value. Errors: none. Units: blocks.
class TakenOfLate {
 public:
  static constexpr absl::Duration kSpan = absl::Seconds(1);

  void Note(int64_t blocks, absl::Time now) {
    if (now - since_ >= kSpan) {
      before_ = now - since_ < 2 * kSpan ? blocks_ : 0;
      blocks_ = 0;
      since_ = now;
    }
    blocks_ += blocks;
  }
  /// In the span under way or the one before it, whichever saw more.
  int64_t blocks(absl::Time now) const { return now - since_ < 2 * kSpan ? std::max(blocks_, before_) : 0; }

 private:
  absl::Time since_ = absl::InfinitePast();
  int64_t blocks_ = 0, before_ = 0;  // since then, and in the span before it
};

}  // namespace swiftcache::engine::exec
