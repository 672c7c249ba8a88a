// SPDX-License-Identifier: Apache-2.0
#include "services/did_you_mean.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace swiftcache::services {
namespace {

const std::vector<std::string> kFlags = {"--model", "--model_name", "--threads", "--kv_cache_bytes",
                                         "--kv_cache_dtype"};

TEST(DidYouMeanTest, OneLetterInThreeMayBeWrongAndTwoAtMost) {
  EXPECT_EQ(Nearest("--modl", kFlags), "--model");
  EXPECT_EQ(Nearest("--modle", kFlags), "--model") << "swapped";
  EXPECT_EQ(Nearest("-treads", kFlags), "--threads");
  EXPECT_EQ(Nearest("--kv_cach_byte", kFlags), "--kv_cache_bytes");
  EXPECT_EQ(Nearest("--kv_cash_byte", kFlags), "") << "three";
  EXPECT_EQ(Nearest("--mo", {"--no"}), "") << "one in two";
}

TEST(DidYouMeanTest, TheNearestIsMeantAndElseTheFirstThatBeginsSo) {
  EXPECT_EQ(Nearest("models", {"modes_", "model"}), "model");
  EXPECT_EQ(Nearest("--kv_cache", kFlags), "");
  EXPECT_EQ(DidYouMean("--kv_cache", kFlags), " (did you mean --kv_cache_bytes?)");
  EXPECT_EQ(DidYouMean("--kv", kFlags), "") << "two letters are too few";
}

TEST(DidYouMeanTest, NothingIsNearNothing) {
  EXPECT_EQ(DidYouMean("", kFlags), "");
  EXPECT_EQ(DidYouMean("--", kFlags), "");
  EXPECT_EQ(Nearest("--model", {}), "");
  EXPECT_EQ(Nearest(std::string(1'000'000, 'm'), kFlags), "");
}

TEST(DidYouMeanTest, TheMessageAsks) {
  EXPECT_EQ(DidYouMean("--modl", kFlags), " (did you mean --model?)");
  EXPECT_EQ(DidYouMean("--warmth", kFlags), "");
}

}  // namespace
}  // namespace swiftcache::services
