// SPDX-License-Identifier: Apache-2.0
#include "common/log/json_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/utf8.h"

namespace swiftcache {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Format(const std::string& message) {
  return FormatJsonLine({.time = absl::FromUnixMicros(1763746203'000042),
                         .severity = "INFO",
                         .file = "relay.cc",
                         .line = 7,
                         .thread = 4711,
                         .program = "swiftcache-gateway",
                         .message = message});
}

nlohmann::json Parsed(const std::string& message) { return nlohmann::json::parse(Format(message), nullptr, false); }

TEST(JsonLineTest, ALineIsOneObjectInTheOrderInWhichPeopleRead) {
  EXPECT_EQ(Format(MarkField("request_id", "r1") + "finished"),
            R"({"time":"2025-11-21T17:30:03.000042Z","severity":"INFO","file":"relay.cc","line":7,"thread":4711,)"
            R"("program":"swiftcache-gateway","request_id":"r1","message":"finished"})"
            "\n");
}

TEST(JsonLineTest, TheNamesOfAnEngineAreOnEachOfItsLines) {
  const std::string line = FormatJsonLine({.severity = "INFO",
                                           .file = "step_loop.cc",
                                           .program = "swiftcache-engine",
                                           .engine = "chat-2",
                                           .model = "chat",
                                           .message = "hello"});
  EXPECT_THAT(line, HasSubstr(R"("program":"swiftcache-engine","engine":"chat-2","model":"chat","message":"hello"})"));
}

TEST(JsonLineTest, FieldsKeepTheirTypes) {
  const nlohmann::json line = Parsed(MarkField("tokens", int64_t{1} << 40) + MarkField("ttft_ms", 1.25) +
                                     MarkField("code", "OK") + "request ended");
  EXPECT_EQ(line["tokens"], int64_t{1} << 40);
  EXPECT_EQ(line["ttft_ms"], 1.25);
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["message"], "request ended");
}

TEST(JsonLineTest, AnyBytesAreOneLineOfValidJson) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& text :
       {all, std::string("\xff\xfe"), std::string("half \xe4\xbd"), std::string("\n\r\"\\\0", 5)}) {
    const std::string line = Format(MarkField("id", text) + "then " + text);
    EXPECT_THAT(line, EndsWith("\n"));
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_TRUE(IsValidUtf8(line));
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(object.is_discarded()) << line;
    if (!IsValidUtf8(text)) continue;
    EXPECT_EQ(object["id"], text);
    EXPECT_EQ(object["message"], "then " + text);
  }
}

TEST(JsonLineTest, ATextThatLooksLikeAFieldIsNone) {
  const std::string forged = MarkField("severity", "FATAL");
  const nlohmann::json in_value = Parsed(MarkField("id", forged) + "done");
  EXPECT_EQ(in_value["id"], forged);
  EXPECT_EQ(in_value["severity"], "INFO");
  const nlohmann::json in_text = Parsed(MarkField("id", "r") + "refused: " + forged);
  EXPECT_EQ(in_text["message"], "refused: " + forged);
  EXPECT_EQ(in_text["severity"], "INFO");
}

TEST(JsonLineTest, AFieldThatWasCutStaysInTheMessage) {
  const std::string whole = MarkField("error", "a long story");
  for (size_t size = 1; size < whole.size(); ++size) {
    const nlohmann::json line = Parsed(MarkField("id", "r") + whole.substr(0, size));
    ASSERT_FALSE(line.is_discarded());
    EXPECT_EQ(line["id"], "r");
    EXPECT_FALSE(line.contains("error"));
    EXPECT_EQ(line["message"], whole.substr(0, size));
  }
}

}  // namespace
}  // namespace swiftcache
