// SPDX-License-Identifier: Apache-2.0
// Percentiles of measured durations.
//
//   Percentiles ttft;
//   ttft.Add(absl::Milliseconds(12));
//   absl::Duration p99 = ttft.At(0.99);
#pragma once

#include <cstddef>
#include <vector>

#include "absl/time/time.h"

namespace swiftcache::services::ctl {

/// Nearest rank: At(q) is the smallest value that at least q of all values do not exceed.
/// Thread-safety: none. Errors: none; 0 where nothing was measured.
class Percentiles {
 public:
  void Add(absl::Duration value) { values_.push_back(value); }
  void Add(const std::vector<absl::Duration>& values) { values_.insert(values_.end(), values.begin(), values.end()); }
  size_t count() const { return values_.size(); }
  /// REQUIRES: 0 <= q <= 1.
  absl::Duration At(double q) const;
  absl::Duration Mean() const;

 private:
  std::vector<absl::Duration> values_;
};

}  // namespace swiftcache::services::ctl
