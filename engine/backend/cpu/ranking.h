// SPDX-License-Identifier: Apache-2.0
// Who stands where among the candidates of a row, and how much the better ones weigh, without sorting them all.
//
//   RETURN_IF_ERROR(ranking.Reserve(vocab));
//   ... fill ranking.values() and ranking.ids() ...
//   ranking.Build(count, lowest, scale);
//   int32_t median = ranking.AtMass(ranking.mass() / 2).id;
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/sampling_kernels.h"

namespace swiftcache::engine::backend::cpu {

/// Ranks go by descending value, then by ascending id. A histogram of values finds the few candidates among which a
/// rank or a sum of weights lies, and only these are sorted; where they are many, they get a histogram of their own.
/// Thread-safety: none. Ownership: owns candidates and scratch. Errors: RESOURCE_EXHAUSTED.
class Ranking {
 public:
  /// A rank, and the weight of all up to and with it.
  struct Position {
    int32_t id = 0;
    uint64_t mass = 0;
  };

  explicit Ranking(const SamplingKernels& kernels) : kernels_(kernels) {}

  /// Room for `entries` candidates. Grows only.
  absl::Status Reserve(int64_t entries);
  float* values() const { return values_.as<float>(); }  // finite; room for kSampleStep more than was reserved
  int32_t* ids() const { return ids_.as<int32_t>(); }    // ascending; likewise

  /// Takes the first `count` of values() and ids(), all in [lowest, scale.max] and at least scale.floor. The closer
  /// `lowest` is to the lowest of them, the finer they are divided at once.
  void Build(int64_t count, float lowest, const WeightScale& scale);
  int64_t count() const { return all_.count; }
  /// Of all candidates.
  uint64_t mass() const { return mass_; }
  /// The first rank whose mass is at least `mass`. REQUIRES: 0 < mass <= mass().
  Position AtMass(uint64_t mass);
  /// The rank of that number, counted from 1. REQUIRES: 0 < rank <= count().
  Position AtRank(int64_t rank);

 private:
  static constexpr int64_t kSorted = 64;  // so many are sorted rather than divided

  struct List {
    const float* values;
    const int32_t* ids;
    int64_t count;
  };
  struct Bucket {
    uint64_t mass;
    int64_t count;
  };
  struct Histogram {
    bool divides;  // its values can be told apart by it
    BucketScale scale;
    Bucket buckets[kBuckets];
  };
  struct Entry {
    float value;
    int32_t id;
    uint64_t weight;
  };

  // `reached(mass, count)` of the ranks up to one: false for those before the one looked for, true from there on.
  template <typename Reached>
  Position Find(const Reached& reached);
  uint64_t Fill(const List& list, float highest, float lowest, Histogram& histogram) const;
  void Sort(const List& list);

  const SamplingKernels kernels_;
  int64_t reserved_ = 0;
  HostMemory values_, ids_;                // [reserved_]
  HostMemory member_values_, member_ids_;  // of one bucket, likewise
  List all_ = {};
  WeightScale scale_;
  uint64_t mass_ = 0;
  Histogram histogram_, member_histogram_;
  std::vector<Entry> sorted_;
};

}  // namespace swiftcache::engine::backend::cpu
