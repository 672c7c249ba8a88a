// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swiftcache {
namespace {

using ::testing::HasSubstr;

TEST(HostPortTest, TakesNamesAddressesAndBracketedIpv6) {
  for (const char* text : {"127.0.0.1:0", "localhost:50051", "[::1]:65535", "engine-0.engines.svc:50061"}) {
    absl::StatusOr<HostPort> parsed = HostPort::Parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), text);
  }
}

TEST(HostPortTest, RefusesWhatIsNotHostAndPortAndSaysWhatIsWanted) {
  for (const char* text : {"", ":", "50051", "host", "host:", ":50051", "host:65536", "host:-1", "host:+1", "host: 1",
                           "host:1x", "::1:50051", "a b:1", "host/path:1", "http://host:1", "host:000001"}) {
    const absl::Status status = HostPort::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("wanted HOST:PORT")) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(HostPortTest, ShowsControlCharactersEscaped) {
  EXPECT_THAT(std::string(HostPort::Parse("a\nb:1").status().message()), HasSubstr("a\\nb:1"));
}

}  // namespace
}  // namespace swiftcache
