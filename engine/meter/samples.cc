// SPDX-License-Identifier: Apache-2.0
#include "engine/meter/samples.h"

#include <algorithm>

namespace swiftcache::engine::meter {
namespace {

constexpr absl::Duration kOld = absl::Minutes(10);

}  // namespace

void Samples::Add(absl::Time when, float deviation) {
  samples_.push_back({when, deviation});
  if (samples_.size() > most_) samples_.pop_front();
}

absl::InlinedVector<float, Samples::kUsual> Samples::Recent(absl::Time now) const {
  absl::InlinedVector<float, kUsual> recent;
  recent.reserve(samples_.size());
  for (const Sample& sample : samples_) {
    if (now - sample.when <= kOld) recent.push_back(sample.deviation);
  }
  return recent;
}

std::optional<float> Samples::Median(absl::Time now, size_t least) const {
  absl::InlinedVector<float, kUsual> recent = Recent(now);
  if (recent.size() < least) return std::nullopt;
  const auto middle = recent.begin() + recent.size() / 2;
  std::nth_element(recent.begin(), middle, recent.end());
  return *middle;
}

}  // namespace swiftcache::engine::meter
