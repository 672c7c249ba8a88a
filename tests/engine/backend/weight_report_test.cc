// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/weight_report.h"

#include <gtest/gtest.h>

#include <limits>

namespace swiftcache::engine::backend {
namespace {

TEST(WeightReportTest, NamesFormatsTheMostFrequentFirstAndWhatIsRounded) {
  const WeightReport report{.stored = {{WeightFormat::kQ8_0, 1}, {WeightFormat::kQ4_1, 210}, {WeightFormat::kQ6_K, 30}},
                            .packed = "bf16",
                            .rounded = 240,
                            .largest_relative_error = 0.00389};
  EXPECT_EQ(Describe(report),
            "210 matrices Q4_1, 30 Q6_K, 1 Q8_0 as stored; packed as bf16, which rounds 240 of them (largest relative "
            "error 0.0039)");
  EXPECT_EQ(StoredFormats(report), "Q4_1+Q6_K+Q8_0");
}

TEST(WeightReportTest, SaysWhenNothingIsRounded) {
  const WeightReport report{.stored = {{WeightFormat::kF32, 1}}, .packed = "f32", .rows = "int8"};
  EXPECT_EQ(Describe(report), "1 matrix F32 as stored; packed as f32, which rounds none of them; activations in int8");
  EXPECT_EQ(StoredFormats(report), "F32");
}

}  // namespace
}  // namespace swiftcache::engine::backend
