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

TEST(HostPortTest, SaysOfAUrlThatItIsOne) {
  EXPECT_THAT(std::string(HostPort::Parse("http://127.0.0.1:8000").status().message()), HasSubstr("is a URL"));
}

TEST(HostPortTest, ShowsControlCharactersEscaped) {
  EXPECT_THAT(std::string(HostPort::Parse("a\nb:1").status().message()), HasSubstr("a\\nb:1"));
}

TEST(ClientAddressTest, IsHostAndPortOfWhatGrpcSays) {
  EXPECT_EQ(ClientAddress("ipv4:127.0.0.1:4711"), "127.0.0.1:4711");
  EXPECT_EQ(ClientAddress("ipv6:%5B::1%5D:4711"), "[::1]:4711");
  EXPECT_EQ(ClientAddress("ipv6:%5Bfe80::1%25eth0%5D:4711"), "[fe80::1%eth0]:4711");
  EXPECT_EQ(ClientAddress("unix:/run/a%20socket"), "unix:/run/a%20socket");
  EXPECT_EQ(ClientAddress(""), "");
}

}  // namespace
}  // namespace swiftcache
