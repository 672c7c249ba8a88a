// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

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

TEST(MetricsTest, APartIsInTheTextWhileItLivesAndItsFamiliesAreThoseOfTheOthers) {
  Metrics metrics(Metrics::Labels{{"job", "test"}});
  metrics.Counter("of_whole_total", "Of the whole.").Increment();
  std::shared_ptr<Metrics> a = metrics.Part({{"part", "a"}});
  const std::shared_ptr<Metrics> b = metrics.Part({{"part", "b"}});
  a->Counter("of_parts_total", "Of parts.").Increment(2);
  b->Counter("of_parts_total", "Of parts.").Increment(3);
  b->Counter("of_whole_total", "Of the whole.").Increment(4);
  const auto lines = [&metrics] { return std::vector<std::string>(absl::StrSplit(metrics.Serialize(), '\n')); };
  EXPECT_THAT(lines(),
              IsSupersetOf({"of_whole_total{job=\"test\"} 1", "of_whole_total{job=\"test\",part=\"b\"} 4",
                            "of_parts_total{job=\"test\",part=\"a\"} 2", "of_parts_total{job=\"test\",part=\"b\"} 3"}));
  EXPECT_EQ(std::ranges::count_if(lines(), [](const std::string& line) { return absl::StartsWith(line, "# TYPE"); }),
            2);
  a.reset();
  EXPECT_EQ(std::ranges::count_if(lines(), [](const std::string& line) { return absl::StrContains(line, "\"a\""); }),
            0);
  a = metrics.Part({{"part", "a"}});
  EXPECT_EQ(a->Counter("of_parts_total", "Of parts.").Value(), 0);
}

}  // namespace
}  // namespace swiftcache
