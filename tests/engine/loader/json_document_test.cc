// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/json_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace swiftcache::engine::loader {
namespace {

using testing::HasSubstr;

void ExpectRefused(const std::string& text, const std::string& words) {
  const absl::Status status = ParseJson(text, "x.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 50);
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("x.json"), HasSubstr(words)));
}

TEST(JsonDocumentTest, ReadsWhatTheLibraryReads) {
  const std::string text = R"( {"a": [1, -2, 3.5, true, null, "\u00e9\ud83d\ude00"], "b": {"c": {}}, "": []} )";
  const absl::StatusOr<nlohmann::json> document = ParseJson(text, "x.json");
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(*document, nlohmann::json::parse(text));
}

TEST(JsonDocumentTest, DepthIsBounded) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(64), "x.json").ok());
  ExpectRefused(nested(65), "nested deeper than 64 levels");
  ExpectRefused(std::string(1'000'000, '['), "nested deeper than 64 levels");
  std::string objects;
  for (int i = 0; i < 50'000; ++i) objects += "{\"a\":";
  ExpectRefused(objects, "nested deeper than 64 levels");
}

TEST(JsonDocumentTest, DuplicateKeysAreRefusedAtAnyDepth) {
  ExpectRefused(R"({"a": 1, "a": 1})", "key \"a\" is there twice");
  ExpectRefused(R"([{"x": {"b": 1, "b": 2}}])", "key \"b\" is there twice");
  EXPECT_TRUE(ParseJson(R"({"a": {"a": 1}, "b": {"a": 1}})", "x.json").ok());
}

TEST(JsonDocumentTest, BadTextIsRefusedWithItsPlace) {
  ExpectRefused("", "byte 1");
  ExpectRefused("{\"a\": 1", "byte 8");
  ExpectRefused("{\"a\": 1} x", "byte 10");
  ExpectRefused("\"\xff\xfe\"", "byte 2");
  ExpectRefused("\"\xC0\xAF\"", "byte 2");  // overlong
  ExpectRefused(R"("\ud800")", "byte 8");
  ExpectRefused("NaN", "byte 1");
  ExpectRefused("1e400", "1e400");
}

TEST(JsonObjectTest, WholeNumbersAreWholeAndInRange) {
  const nlohmann::json value = {
      {"n", 5}, {"half", 1.5}, {"big", 18446744073709551615u}, {"text", "5"}, {"null", nullptr}};
  const absl::StatusOr<JsonObject> object = JsonObject::Of(value, "x.json", "outer");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(*object->RequireInt("n", 1, 5), 5);
  EXPECT_FALSE(object->Int("null", 0, 9)->has_value());
  EXPECT_FALSE(object->Int("absent", 0, 9)->has_value());
  for (const char* key : {"half", "big", "text", "null", "absent"}) {
    const absl::Status status = object->RequireInt(key, 0, INT64_MAX).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("x.json: key outer.") + key));
  }
  EXPECT_EQ(object->RequireInt("n", 6, 9).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::engine::loader
