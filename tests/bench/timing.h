// SPDX-License-Identifier: Apache-2.0
// Times of work that is done again and again, for benchmarks.
//
//   seconds.push_back(SecondsOf([&] { model.Step(); }));
//   std::printf("%.3f s\n", Median(seconds));
#pragma once

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace swiftcache {

/// Wall time.
template <typename Work>
double SecondsOf(const Work& work) {
  const absl::Time begin = absl::Now();
  work();
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

/// The mean of the middle two of an even number. REQUIRES: there is one.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace swiftcache
