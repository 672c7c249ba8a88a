// SPDX-License-Identifier: Apache-2.0
// Headers that come in many pieces, and those of requests that wait behind an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/http/http_server.h"
#include "tests/common/http/http_fixture.h"

namespace swiftcache {
namespace {

using fakes::RawHttpClient;
using ::testing::HasSubstr;

class HttpHeadersTest : public HttpFixture {
 protected:
  /// A GET with so many long lines. Each read of the server ends with a line and the first letter of the next: Beast
  /// takes a line once it knows that the next one does not continue it, and does not count it against its limit then.
  static void SendLines(RawHttpClient& client, int lines, size_t line_bytes) {
    const int at_once = 1;
    setsockopt(client.fd(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    client.Send("GET /tree/of/things HTTP/1.1\r\nX");
    for (int i = 0; i < lines; ++i) {
      absl::SleepFor(absl::Milliseconds(5));
      client.Send(absl::StrCat("-", i, ": ", std::string(line_bytes, 'x'), "\r\nX"));
    }
    client.Send("-Last:\r\n\r\n");
  }
};

TEST_F(HttpHeadersTest, ManyLongLinesAreRefusedThoughEachIsShort) {
  StartServer({.header_timeout = absl::Minutes(1)});
  RawHttpClient client(server_->address());
  SendLines(client, 14, 5000);
  const auto refused = client.ReadResponse();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 431);
  EXPECT_THAT(refused->body, HasSubstr("the headers are larger than the limit of 65536 bytes"));
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpHeadersTest, HeadersAndTrailersCountTogether) {
  StartServer({.header_timeout = absl::Minutes(1), .stall_timeout = absl::Minutes(1)});
  const std::string header = absl::StrCat("X: ", std::string(33'000, 'x'), "\r\n");
  for (const bool trailer : {false, true}) {
    RawHttpClient client(server_->address());
    client.Send(absl::StrCat("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", header, "\r\n1\r\na\r\n0\r\n",
                             trailer ? header : "", "\r\n"));
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, trailer ? 431 : 200);
  }
}

TEST_F(HttpHeadersTest, HeadersNearTheLimitAreTakenWhereverTheReadsEnd) {
  StartServer({.header_timeout = absl::Minutes(1)});
  RawHttpClient client(server_->address());
  for (const size_t line_bytes : {5000, 10'000, 20'000}) {
    SendLines(client, static_cast<int>(60'000 / line_bytes), line_bytes);
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << line_bytes;
    EXPECT_EQ(response->status, 200) << line_bytes;
  }
}

TEST_F(HttpHeadersTest, PipelinedHeadersWaitOutsideOnceOneRequestsWorthIsHeld) {
  constexpr int kRequests = 8;
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  const auto first = held_.Get(0);
  ASSERT_TRUE(first);
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) {
      client.SendRequest("POST", "/echo", std::to_string(i), absl::StrCat("X: ", std::string(60'000, 'x'), "\r\n"));
    }
  });
  const int fd = ServerEndOf(client.fd());
  // What the server leaves unread: it has to stay so for a while.
  int unread = 0;
  for (const absl::Time give_up = absl::Now() + absl::Seconds(20); absl::Now() < give_up;) {
    int before = 0;
    ioctl(fd, FIONREAD, &before);
    absl::SleepFor(absl::Milliseconds(300));
    ioctl(fd, FIONREAD, &unread);
    if (unread > 0 && unread == before) break;
  }
  EXPECT_GT(unread, 0) << "wants some of " << kRequests << " headers of 60 kB left outside";
  first->Send(200, "text/plain", "first", {});
  const auto answered = client.ReadResponse();
  EXPECT_TRUE(answered && answered->body == "first");
  for (int i = 0; i < kRequests; ++i) {
    const auto response = client.ReadResponse();
    EXPECT_TRUE(response && response->body == absl::StrCat("POST /echo ", i)) << i;
  }
  sender.join();
}

}  // namespace
}  // namespace swiftcache
