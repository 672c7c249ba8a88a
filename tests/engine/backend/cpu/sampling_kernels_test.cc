// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/sampling_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kCount = 3 * kSampleBlock + kSampleStep;

// Numbers at all distances below 5, and what is no number.
std::vector<float> Logits() {
  std::vector<float> x = RandomVector(kCount, 50, 10);
  for (float& v : x) v = 5 - std::abs(v);
  x[0] = 5;
  x[1] = std::nanf("");
  x[2] = -INFINITY;
  x[3] = -3e38f;
  std::fill(x.begin() + kSampleBlock, x.begin() + 2 * kSampleBlock, std::nanf(""));
  return x;
}

std::vector<SamplingKernels> AllKernels() {
  std::vector<SamplingKernels> all;
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) == isa) all.push_back(SamplingKernelsFor(isa));
  }
  return all;
}

TEST(SamplingKernelsTest, WeightsAreThePowersOfTwoRoundedDown) {
  const std::vector<float> x = Logits();
  for (float bits : {0.3f, 1.4426950f, 14.0f}) {
    const WeightScale scale{.max = 5, .bits = bits, .floor = -20};
    std::vector<uint64_t> weights(kCount);
    AllKernels().back().weights(x.data(), kCount, scale, weights.data());
    EXPECT_EQ(weights[0], kWeightOfMax);
    for (int64_t i = 0; i < kCount; ++i) {
      const double exact = x[i] >= -20 ? std::ldexp(std::exp2((double{x[i]} - 5) * bits), 40) : 0;
      EXPECT_NEAR(static_cast<double>(weights[i]), exact, 1 + 4e-6 * exact) << x[i];
    }
  }
}

TEST(SamplingKernelsTest, WhatLiesFarUnderTheLargestWeighsNothing) {
  std::vector<float> x(kSampleStep, static_cast<float>(1 - kWeightBits));
  uint64_t weights[kSampleStep];
  for (const SamplingKernels& kernels : AllKernels()) {
    kernels.weights(x.data(), kSampleStep, {.max = 1, .bits = 1}, weights);
    for (uint64_t weight : weights) EXPECT_EQ(weight, 0u);
  }
}

TEST(SamplingKernelsTest, EveryIsaGivesTheSameBits) {
  const std::vector<float> x = Logits();
  const WeightScale scale{.max = 5, .bits = 1.7f, .floor = -20};
  std::vector<uint64_t> expected(kCount), weights(kCount);
  AllKernels()[0].weights(x.data(), kCount, scale, expected.data());
  uint64_t sum = 0;
  for (uint64_t weight : expected) sum += weight;
  const double exps = AllKernels()[0].sum_exp(x.data(), kCount, 5);
  for (const SamplingKernels& kernels : AllKernels()) {
    kernels.weights(x.data(), kCount, scale, weights.data());
    EXPECT_EQ(weights, expected);
    EXPECT_EQ(kernels.sum_weights(x.data(), kCount, scale), sum);
    EXPECT_EQ(kernels.sum_exp(x.data(), kCount, 5), exps);
  }
}

TEST(SamplingKernelsTest, SumsOfExponentialsAreThoseOfTheLibrary) {
  const std::vector<float> x = Logits();
  double expected = 0;
  for (float v : x) expected += std::isnan(v) ? 0 : std::exp(double{v} - 5);
  EXPECT_NEAR(AllKernels()[0].sum_exp(x.data(), kCount, 5) / expected, 1, 1e-6);
}

TEST(SamplingKernelsTest, BlocksHaveTheirMaximaAndNanHasNoSay) {
  std::vector<float> x = Logits();
  x[2 * kSampleBlock + 9] = INFINITY;
  x[3 * kSampleBlock + 31] = 6;
  for (const SamplingKernels& kernels : AllKernels()) {
    float maxima[4];
    kernels.block_maxima(x.data(), kCount, maxima);
    EXPECT_EQ(maxima[0], 5);
    EXPECT_EQ(maxima[1], -INFINITY);
    EXPECT_EQ(maxima[2], INFINITY);
    EXPECT_EQ(maxima[3], 6);
  }
}

TEST(SamplingKernelsTest, WhatIsHighEnoughIsCollectedInOrder) {
  std::vector<float> x = Logits();
  x[40] = INFINITY;
  for (float bound : {-INFINITY, -4.0f, 4.9f, 5.0f, INFINITY}) {
    std::vector<float> expected;
    std::vector<int32_t> expected_ids;
    for (int64_t i = 0; i < kCount; ++i) {
      if (!(x[i] >= bound)) continue;
      expected.push_back(std::min(x[i], std::numeric_limits<float>::max()));
      expected_ids.push_back(static_cast<int32_t>(1000 + i));
    }
    for (const SamplingKernels& kernels : AllKernels()) {
      std::vector<float> values(kCount + kSampleStep);
      std::vector<int32_t> ids(kCount + kSampleStep);
      const int64_t count = kernels.collect(x.data(), kCount, bound, 1000, values.data(), ids.data());
      values.resize(count);
      ids.resize(count);
      EXPECT_EQ(values, expected);
      EXPECT_EQ(ids, expected_ids);
    }
  }
}

TEST(SamplingKernelsTest, ABucketsEntriesAreSelectedInOrderAndInPlace) {
  const std::vector<float> x = RandomVector(kCount, 51);
  const BucketScale scale{.highest = *std::max_element(x.begin(), x.end()), .per_unit = 400};  // the last one overflows
  std::vector<int32_t> buckets(kCount), first(kCount);
  AllKernels()[0].buckets(x.data(), kCount, scale, first.data());
  for (const SamplingKernels& kernels : AllKernels()) {
    kernels.buckets(x.data(), kCount, scale, buckets.data());
    EXPECT_EQ(buckets, first);
    for (const int32_t bucket : {buckets[0], buckets[17], kBuckets - 1}) {
      for (const int64_t n : {kCount, kCount - 7, int64_t{18}}) {
        std::vector<float> values = x, expected;
        std::vector<int32_t> ids(kCount), expected_ids;
        for (int64_t i = 0; i < kCount; ++i) ids[i] = static_cast<int32_t>(2 * i);
        for (int64_t i = 0; i < n; ++i) {
          const int32_t own = static_cast<int32_t>(std::min((scale.highest - x[i]) * 400, kBuckets - 1.0f));
          ASSERT_EQ(buckets[i], own);
          if (own != bucket) continue;
          expected.push_back(x[i]);
          expected_ids.push_back(ids[i]);
        }
        const int64_t count = kernels.select(values.data(), ids.data(), n, scale, bucket, values.data(), ids.data());
        values.resize(count);
        ids.resize(count);
        EXPECT_EQ(values, expected);
        EXPECT_EQ(ids, expected_ids);
      }
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
