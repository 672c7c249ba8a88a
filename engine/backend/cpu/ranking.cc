// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/ranking.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kChunk = 256;  // entries whose weights are computed at once

int64_t RoundUp(int64_t n) { return CeilDiv(n, kSampleStep) * kSampleStep; }

}  // namespace

absl::Status Ranking::Reserve(int64_t entries) {
  if (entries <= reserved_) return absl::OkStatus();
  const int64_t room = entries + 2 * kSampleStep;  // what kernels write and read in whole vectors
  for (HostMemory* memory : {&values_, &ids_, &member_values_, &member_ids_}) {
    ASSIGN_OR_RETURN(*memory, HostMemory::Allocate(room * int64_t{sizeof(float)}));
  }
  reserved_ = entries;
  return absl::OkStatus();
}

void Ranking::Build(int64_t count, float lowest, const WeightScale& scale) {
  all_ = {values(), ids(), count};
  scale_ = scale;
  mass_ = Fill(all_, scale.max, lowest, histogram_);
}

Ranking::Position Ranking::AtMass(uint64_t mass) {
  CHECK_LE(mass, mass_);
  return Find([mass](uint64_t up_to, int64_t count) { return up_to >= mass; });
}

Ranking::Position Ranking::AtRank(int64_t rank) {
  CHECK_LE(rank, all_.count);
  return Find([rank](uint64_t up_to, int64_t count) { return count >= rank; });
}

template <typename Reached>
Ranking::Position Ranking::Find(const Reached& reached) {
  List list = all_;
  uint64_t mass = 0;  // of the ranks before the list
  int64_t count = 0;
  for (const Histogram* histogram = &histogram_; list.count > kSorted && histogram->divides;) {
    const Bucket* bucket = histogram->buckets;
    for (; !reached(mass + bucket->mass, count + bucket->count); ++bucket) {
      mass += bucket->mass;
      count += bucket->count;
    }
    float* values = member_values_.as<float>();
    int32_t* ids = member_ids_.as<int32_t>();
    list = {values, ids,
            kernels_.select(list.values, list.ids, list.count, histogram->scale,
                            static_cast<int32_t>(bucket - histogram->buckets), values, ids)};
    if (list.count <= kSorted) break;
    const auto [lowest, highest] = std::minmax_element(values, values + list.count);
    Fill(list, *highest, *lowest, member_histogram_);
    histogram = &member_histogram_;
  }
  Sort(list);
  const Entry* entry = sorted_.data();
  while (!reached(mass + entry->weight, count + 1)) {
    mass += entry->weight;
    ++count;
    ++entry;
  }
  return {entry->id, mass + entry->weight};
}

// Returns the mass. A histogram from the highest value to the lowest divides them, unless they are equal, or so close
// or so far apart that the width of a bucket is no finite number. Few are only summed.
uint64_t Ranking::Fill(const List& list, float highest, float lowest, Histogram& histogram) const {
  const float range = highest - lowest;
  const float per_unit = std::min(kBuckets / range, std::numeric_limits<float>::max());
  histogram.divides = list.count > kSorted && std::isfinite(range) && range * per_unit >= 1;
  if (histogram.divides) {
    histogram.scale = {highest, per_unit};
    std::fill(std::begin(histogram.buckets), std::end(histogram.buckets), Bucket{0, 0});
  }
  uint64_t weights[kChunk], mass = 0;
  int32_t buckets[kChunk];
  for (int64_t begin = 0; begin < list.count; begin += kChunk) {
    const int64_t n = std::min(kChunk, list.count - begin);
    kernels_.weights(list.values + begin, RoundUp(n), scale_, weights);
    mass += std::accumulate(weights, weights + n, uint64_t{0});
    if (!histogram.divides) continue;
    kernels_.buckets(list.values + begin, RoundUp(n), histogram.scale, buckets);
    for (int64_t i = 0; i < n; ++i) {
      histogram.buckets[buckets[i]].mass += weights[i];
      ++histogram.buckets[buckets[i]].count;
    }
  }
  return mass;
}

void Ranking::Sort(const List& list) {
  sorted_.clear();
  uint64_t weights[kChunk];
  for (int64_t begin = 0; begin < list.count; begin += kChunk) {
    const int64_t n = std::min(kChunk, list.count - begin);
    kernels_.weights(list.values + begin, RoundUp(n), scale_, weights);
    for (int64_t i = 0; i < n; ++i) sorted_.push_back({list.values[begin + i], list.ids[begin + i], weights[i]});
  }
  const auto before = [](const Entry& a, const Entry& b) {
    return a.value != b.value ? a.value > b.value : a.id < b.id;
  };
  if (!std::is_sorted(sorted_.begin(), sorted_.end(), before)) std::sort(sorted_.begin(), sorted_.end(), before);
}

}  // namespace swiftcache::engine::backend::cpu
