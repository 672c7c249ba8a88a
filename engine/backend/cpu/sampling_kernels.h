// SPDX-License-Identifier: Apache-2.0
// The passes over a vocabulary that sampling makes, one set for each instruction set; all sets give the same bits.
//
//   SamplingKernels kernels = SamplingKernelsFor(BestIsa());
//   uint64_t total = kernels.sum_weights(logits, n, {.max = max, .bits = 1.4427f, .floor = -INFINITY});
#pragma once

#include <cstdint>
#include <limits>

#include "engine/backend/cpu/isa.h"

namespace swiftcache::engine::backend::cpu {

/// Entries that share one maximum in what `block_maxima` writes.
inline constexpr int64_t kSampleBlock = 256;
/// `n` of the kernels below is a multiple of this.
inline constexpr int64_t kSampleStep = 32;
/// The weight of the largest logit.
inline constexpr uint64_t kWeightOfMax = uint64_t{1} << 40;
/// A logit that lies this many bits under the largest weighs nothing.
inline constexpr double kWeightBits = 41;

/// A logit x weighs 2^(40 - (max - x) * bits), rounded down: bits = log2(e) / temperature. Nothing where x is NaN or
/// below `floor`. max: finite, no x is larger but +inf, which counts as the largest finite float.
struct WeightScale {
  float max = 0;
  float bits = 0;
  float floor = -std::numeric_limits<float>::infinity();
};

/// A value v lies in bucket (highest - v) * per_unit, rounded down, or in the last one: values no higher than `highest`
/// are spread over buckets of equal width, the highest first.
struct BucketScale {
  float highest = 0;
  float per_unit = 0;
};
inline constexpr int32_t kBuckets = 1024;

/// x: f32 [n], alignment free. Only additions, subtractions and multiplications that round once, integers, and sums in
/// an order that no vector length changes.
struct SamplingKernels {
  /// out: f32 [ceil(n / kSampleBlock)], the largest entry that is not NaN; -inf where there is none.
  void (*block_maxima)(const float* x, int64_t n, float* out) = nullptr;
  uint64_t (*sum_weights)(const float* x, int64_t n, const WeightScale& scale) = nullptr;
  /// out: u64 [n].
  void (*weights)(const float* x, int64_t n, const WeightScale& scale, uint64_t* out) = nullptr;
  /// The sum of exp(x - max), as sum_weights takes `max`.
  double (*sum_exp)(const float* x, int64_t n, float max) = nullptr;
  /// Appends the entries that are at least `at_least`, in their order: values, +inf as the largest finite float, and ids,
  /// which count from first_id. Returns how many. Writes up to kSampleStep entries more than that.
  int64_t (*collect)(const float* x, int64_t n, float at_least, int32_t first_id, float* values,
                     int32_t* ids) = nullptr;
  /// out: [n].
  void (*buckets)(const float* x, int64_t n, const BucketScale& scale, int32_t* out) = nullptr;
  /// Appends the entries of `bucket`, likewise; here n is any number, x and ids are readable up to the next multiple of
  /// kSampleStep, and the output may be the input.
  int64_t (*select)(const float* x, const int32_t* ids, int64_t n, const BucketScale& scale, int32_t bucket,
                    float* out_x, int32_t* out_ids) = nullptr;
};

/// REQUIRES: the machine has `isa`.
SamplingKernels SamplingKernelsFor(Isa isa);

}  // namespace swiftcache::engine::backend::cpu
