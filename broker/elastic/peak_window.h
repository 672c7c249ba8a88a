// SPDX-License-Identifier: Apache-2.0
// The highest of the values that were added within a sliding window of time.
//
//   PeakWindow peaks;
//   peaks.Add(now, 40);
//   peaks.Peak(now, absl::Seconds(60)) == 40;
#pragma once

#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace swiftcache::broker::elastic {

/// Keeps only values that no later value exceeds, which are few however many are added. Thread-safety: none.
class PeakWindow {
 public:
  /// REQUIRES: times do not go back.
  void Add(absl::Time now, int64_t value) {
    while (!values_.empty() && values_.back().value <= value) values_.pop_back();
    values_.push_back({now, value});
  }
  /// Of the values younger than `horizon`; 0 where there are none.
  int64_t Peak(absl::Time now, absl::Duration horizon) const {
    for (const Sample& sample : values_) {
      if (now - sample.when < horizon) return sample.value;
    }
    return 0;
  }
  /// Forgets values of `horizon` and older.
  void Forget(absl::Time now, absl::Duration horizon) {
    while (!values_.empty() && now - values_.front().when >= horizon) values_.pop_front();
  }

 private:
  struct Sample {
    absl::Time when;
    int64_t value = 0;
  };
  std::deque<Sample> values_;  // ever younger, ever lower
};

}  // namespace swiftcache::broker::elastic
