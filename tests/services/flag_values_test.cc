// SPDX-License-Identifier: Apache-2.0
#include "services/flag_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swiftcache::services {
namespace {

using ::testing::HasSubstr;

TEST(FlagValuesTest, SizesTakeBinaryAndDecimalUnits) {
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, int64_t>>{{"0", 0},
                                                                                {"4096", 4096},
                                                                                {"64MiB", 64 << 20},
                                                                                {"64mib", 64 << 20},
                                                                                {"1.5GiB", 1610612736},
                                                                                {"2GB", 2'000'000'000},
                                                                                {"512m", 512 << 20},
                                                                                {"10G", 10ll << 30},
                                                                                {"1TiB", 1ll << 40},
                                                                                {"7B", 7}}) {
    absl::StatusOr<int64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(FlagValuesTest, WrongSizesNameWhatWasFoundAndWanted) {
  for (const char* text :
       {"", "MiB", "-1", "1e3", "64 MiB", "1XiB", "1.2.3", "99999999999999999999TiB", "nan", "inf"}) {
    const absl::Status status = ParseBytes(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("found '" + std::string(text) + "', wanted a size")) << text;
  }
}

TEST(FlagValuesTest, IntegersAreWholeAndFit) {
  EXPECT_EQ(*ParseInteger("-12"), -12);
  for (const char* text : {"", " 1", "1.5", "1k", "99999999999999999999"}) {
    EXPECT_EQ(ParseInteger(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(FlagValuesTest, FractionsAreAboveZeroAndAtMostOne) {
  EXPECT_EQ(*ParseFraction("0.9"), 0.9);
  EXPECT_EQ(*ParseFraction("1"), 1.0);
  for (const char* text : {"", "0", "-0.5", "1.0001", "nan", "inf", "90%"}) {
    const absl::Status status = ParseFraction(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("wanted a number above 0, at most 1")) << text;
  }
}

TEST(FlagValuesTest, DurationsNeedAUnit) {
  EXPECT_EQ(*ParseDuration("50ms"), absl::Milliseconds(50));
  EXPECT_EQ(*ParseDuration("1m30s"), absl::Seconds(90));
  EXPECT_EQ(ParseDuration("60").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FlagValuesTest, SwitchesAreTrueOrFalse) {
  EXPECT_TRUE(*ParseSwitch("On"));
  EXPECT_FALSE(*ParseSwitch("0"));
  EXPECT_EQ(ParseSwitch("maybe").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FlagValuesTest, FormatUsesTheLargestUnitThatDivides) {
  EXPECT_EQ(FormatBytes(64 << 20), "64MiB");
  EXPECT_EQ(FormatBytes(1536), "1536");
  EXPECT_EQ(FormatBytes(0), "0");
}

TEST(ParseNameTest, RefusesWhatWouldForgeLogLinesOrLabels) {
  EXPECT_EQ(*ParseName("org/model-7b:q4"), "org/model-7b:q4");
  for (const std::string bad : {"a\nb", "a b", "a\"b", "\xff"}) {
    EXPECT_EQ(ParseName(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(ParseName(std::string(129, 'a')).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::services
