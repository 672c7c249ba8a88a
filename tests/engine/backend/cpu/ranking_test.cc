// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/ranking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// Asks a ranking of `values`, whose ids are 3, 5, 7, ..., for ranks and masses, and compares with a plain sort.
void ExpectRanks(const std::vector<float>& values, float bits, float lowest) {
  const SamplingKernels kernels = SamplingKernelsFor(BestIsa());
  const int64_t n = values.size();
  Ranking ranking(kernels);
  ASSERT_TRUE(ranking.Reserve(n).ok());
  std::copy(values.begin(), values.end(), ranking.values());
  for (int64_t i = 0; i < n; ++i) ranking.ids()[i] = static_cast<int32_t>(3 + 2 * i);
  const WeightScale scale{.max = *std::max_element(values.begin(), values.end()), .bits = bits};
  ranking.Build(n, lowest, scale);

  std::vector<uint64_t> weights(n + kSampleStep);
  std::vector<float> padded = values;
  padded.resize(n + kSampleStep);
  kernels.weights(padded.data(), (n + kSampleStep - 1) / kSampleStep * kSampleStep, scale, weights.data());
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  std::vector<uint64_t> masses;
  for (int32_t i : order) masses.push_back((masses.empty() ? 0 : masses.back()) + weights[i]);
  ASSERT_EQ(ranking.mass(), masses.back());
  for (int64_t rank = 1; rank <= n; rank += 1 + n / 97) {
    const Ranking::Position at = ranking.AtRank(rank);
    EXPECT_EQ(at.id, 3 + 2 * order[rank - 1]) << rank;
    EXPECT_EQ(at.mass, masses[rank - 1]) << rank;
  }
  for (int i = 0; i < 100; ++i) {
    for (const uint64_t mass : {masses.back() / 100 * i + 1, masses[i * n / 100], masses.back()}) {
      const int64_t rank = std::lower_bound(masses.begin(), masses.end(), mass) - masses.begin();
      const Ranking::Position at = ranking.AtMass(mass);
      EXPECT_EQ(at.id, 3 + 2 * order[rank]) << mass;
      EXPECT_EQ(at.mass, masses[rank]) << mass;
    }
  }
}

void ExpectRanks(const std::vector<float>& values, float bits) {
  ExpectRanks(values, bits, *std::min_element(values.begin(), values.end()));
}

TEST(RankingTest, FewAndManyCandidatesAreRankedAsBySorting) {
  for (int64_t n : {1, 2, 63, 64, 65, 66, 1000, 50000}) ExpectRanks(RandomVector(n, 40, 3), 1.4f);
}

TEST(RankingTest, TiesGoByTheLowestId) {
  ExpectRanks(std::vector<float>(5000, 2.5f), 1.4f);
  std::vector<float> values = RandomVector(20000, 41);
  for (float& x : values) x = std::round(x * 4) / 4;
  ExpectRanks(values, 1.4f);
}

// One value far below makes the first histogram put all others into one bucket, and so on within it.
TEST(RankingTest, ValuesThatCrowdTogetherAreDividedAgain) {
  std::vector<float> values = RandomVector(20000, 42, 1e-4f);
  for (int i = 0; i < 100; ++i) values[i * 7] *= 100;
  values[19] = -20;
  ExpectRanks(values, 1.4f);
}

TEST(RankingTest, TheLowestMayBeGuessedTooLow) {
  for (float lowest : {-100.0f, -1e6f, -1e30f, -std::numeric_limits<float>::max()}) {
    ExpectRanks(RandomVector(3000, 44, 3), 1.4f, lowest);
  }
}

TEST(RankingTest, ValuesBeyondTheReachOfAHistogramAreSorted) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::denorm_min();
  std::vector<float> values = RandomVector(300, 43, kLargest / 8);
  values[3] = kLargest;
  values[4] = -kLargest;
  ExpectRanks(values, 1e-38f);
  values.assign(300, 0.0f);
  values[100] = values[7] = kSmallest;
  ExpectRanks(values, 1.4f);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
