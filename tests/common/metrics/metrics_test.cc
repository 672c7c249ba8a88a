// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace swiftcache {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::IsSupersetOf;
using ::testing::Le;

std::vector<double> Ratios(const std::vector<double>& buckets) {
  std::vector<double> ratios;
  for (size_t i = 1; i < buckets.size(); ++i) ratios.push_back(buckets[i] / buckets[i - 1]);
  return ratios;
}

TEST(BucketsTest, EachListRisesAndHasThoseOfVllm) {
  EXPECT_THAT(kTtftBuckets, IsSupersetOf({0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                          1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0}));
  EXPECT_THAT(kInterTokenBuckets, IsSupersetOf({0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
                                                5.0, 7.5, 10.0, 20.0, 40.0, 80.0}));
  EXPECT_THAT(kRequestBuckets, IsSupersetOf({0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                             30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0}));
  for (const auto* buckets : {&kTtftBuckets, &kInterTokenBuckets, &kRequestBuckets}) {
    EXPECT_THAT(Ratios(*buckets), Each(Gt(1)));
  }
}

// A quantile lies within a bucket by interpolation alone.
TEST(BucketsTest, FirstTokensThatPeopleWaitForAreToldApart) {
  std::vector<double> felt;
  std::ranges::copy_if(kTtftBuckets, std::back_inserter(felt), [](double s) { return 0.02 <= s && s <= 1; });
  EXPECT_THAT(Ratios(felt), Each(AllOf(Gt(1), Le(1.6))));
}

}  // namespace
}  // namespace swiftcache
