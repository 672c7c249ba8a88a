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

/// The upper one of an even number. REQUIRES: there is one.
inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace swiftcache
