// SPDX-License-Identifier: Apache-2.0
#include "common/http/wire_format.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace swiftcache::http {
namespace {

TEST(WireFormat, HeaderValuesCannotBeginAnotherHeader) {
  EXPECT_EQ(FormatHead(200, {{"X-Request-Id", "a\r\nSet-Cookie: b"}}),
            "HTTP/1.1 200 OK\r\nX-Request-Id: a  Set-Cookie: b\r\n\r\n");
}

TEST(WireFormat, ChunksCarryTheirSizeInHexadecimal) {
  EXPECT_EQ(FormatChunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
}

TEST(WireFormat, ErrorsAreJsonWhateverTheMessageHolds) {
  EXPECT_EQ(FormatError(404, "no \"x\"\n\xff"),
            "{\"error\":{\"code\":\"not_found\",\"message\":\"no \\\"x\\\"\\n\xEF\xBF\xBD\",\"param\":null,"
            "\"type\":\"invalid_request_error\"}}");
  EXPECT_NE(FormatError(503, "later").find("server_error"), std::string::npos);
}

TEST(WireFormat, AnErrorNamesTheFieldItIsAbout) {
  EXPECT_EQ(FormatError({.message = "top_p is 7", .type = "t", .code = "c", .param = "top_p\xff"}),
            "{\"error\":{\"code\":\"c\",\"message\":\"top_p is 7\",\"param\":\"top_p\xEF\xBF\xBD\",\"type\":\"t\"}}");
}

TEST(WireFormat, CodesOfErrorsAreWords) {
  for (const auto& [status, code] : {std::pair(400, "bad_request"),
                                     {405, "method_not_allowed"},
                                     {413, "payload_too_large"},
                                     {500, "internal_error"},
                                     {503, "unavailable"},
                                     {418, "error"}}) {
    EXPECT_NE(FormatError(status, "").find("\"code\":\"" + std::string(code) + "\""), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace swiftcache::http
