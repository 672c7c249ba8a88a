// SPDX-License-Identifier: Apache-2.0
// The latest deviations of steps, and their median: what the meter of interference compares.
//
//   Samples quiet(192);
//   quiet.Add(now, 0.02);                                          // two percent slower than predicted
//   if (const auto usual = quiet.Median(now, /*least=*/16)) ...   // nothing: too few are recent
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"

namespace swiftcache::engine::meter {

/// The last `most` samples. Those of more than 10 minutes ago do not count, at whatever time one asks: a copy grows old
/// as the original does.
/// Thread-safety: none. Ownership: a value; a copy to one as long allocates nothing. Errors: none. Units: logarithm of a
/// time over what was expected.
class Samples {
 public:
  static constexpr size_t kUsual = 192;

  explicit Samples(size_t most = kUsual) : most_(most) {}
  void Add(absl::Time when, float deviation);
  int64_t Count(absl::Time now) const { return static_cast<int64_t>(Recent(now).size()); }
  /// Nothing: fewer than `least` are recent. REQUIRES: least > 0.
  std::optional<float> Median(absl::Time now, size_t least) const;

 private:
  struct Sample {
    absl::Time when;
    float deviation = 0;
  };
  absl::InlinedVector<float, kUsual> Recent(absl::Time now) const;

  size_t most_;
  std::deque<Sample> samples_;  // oldest first
};

}  // namespace swiftcache::engine::meter
