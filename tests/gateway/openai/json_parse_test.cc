// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/json_parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace swiftcache::gateway::openai {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Refusal(const std::string& text, const JsonLimits& limits = {}) {
  const auto parsed = ParseJson(text, limits);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
  return std::string(parsed.status().message());
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const std::string text = R"({"a":[1,-2,3.5,true,null,"\u00e9"],"b":{"c":{}}})";
  const auto parsed = ParseJson(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, nlohmann::json::parse(text));
  EXPECT_EQ(*ParseJson("7"), 7);
}

TEST(ParseJson, WhatIsNotJsonIsRefusedWithItsPlace) {
  for (const std::string text : {"", "{", "{\"a\":}", "[1,]", "{\"a\":NaN}", "{\"a\":Infinity}", "[1e999]", "nul",
                                 "{} {}", "'a'", "\"\\ud800\"", "{\"a\" 1}"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("the body is not valid JSON (byte "));
  }
}

TEST(ParseJson, InvalidUtf8IsRefused) {
  for (const std::string bytes : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(Refusal("{\"prompt\":\"" + bytes + "\"}"), HasSubstr("UTF-8"));
  }
}

TEST(ParseJson, ARefusalQuotesNothingOfTheBody) {
  for (const std::string text :
       {"{\"prompt\":\"a secret\n\"}", "{\"prompt\":\"a secret\xff\"}", "{\"prompt\":\"a secret", "\"a secret\" 1",
        "{\"prompt\":\"a secret\", \"a secret\"}", "{'a secret'}"}) {
    EXPECT_THAT(Refusal(text), Not(HasSubstr("secret"))) << text;
  }
}

TEST(ParseJson, DepthIsLimitedHoweverDeepTheBodyIs) {
  EXPECT_TRUE(ParseJson(std::string(32, '[') + std::string(32, ']')).ok());
  EXPECT_THAT(Refusal(std::string(33, '[') + std::string(33, ']')), HasSubstr("deeper than 32 levels"));
  EXPECT_THAT(Refusal(std::string(10 << 20, '[')), HasSubstr("deeper than 32 levels"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(Refusal(objects), HasSubstr("deeper than 32 levels"));
}

TEST(ParseJson, TheNumberOfValuesIsLimited) {
  EXPECT_TRUE(ParseJson("[1,2,3]", {.max_values = 4}).ok());
  EXPECT_THAT(Refusal("[1,2,3,4]", {.max_values = 4}), HasSubstr("more than 4 JSON values"));
}

TEST(ParseJson, AKeyMayStandOnlyOnceInAnObject) {
  EXPECT_THAT(Refusal(R"({"a":1,"b":{"c":1,"c":2}})"), HasSubstr("key 'c' stands twice"));
  EXPECT_TRUE(ParseJson(R"([{"a":1},{"a":{"a":2}}])").ok());
}

}  // namespace
}  // namespace swiftcache::gateway::openai
