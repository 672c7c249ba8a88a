// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/percentiles.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace swiftcache::services::ctl {

absl::Duration Percentiles::At(double q) const {
  if (values_.empty()) return absl::ZeroDuration();
  std::vector<absl::Duration> sorted = values_;
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(sorted.size()))) - 1;
  const auto nth = sorted.begin() + std::clamp<int64_t>(rank, 0, static_cast<int64_t>(sorted.size()) - 1);
  std::nth_element(sorted.begin(), nth, sorted.end());
  return *nth;
}

absl::Duration Percentiles::Mean() const {
  if (values_.empty()) return absl::ZeroDuration();
  return std::accumulate(values_.begin(), values_.end(), absl::ZeroDuration()) / static_cast<double>(values_.size());
}

}  // namespace swiftcache::services::ctl
