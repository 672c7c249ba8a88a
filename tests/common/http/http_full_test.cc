// SPDX-License-Identifier: Apache-2.0
// A server all of whose connections are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>

#include "common/http/http_server.h"
#include "tests/common/http/http_fixture.h"

namespace swiftcache {
namespace {

using fakes::RawHttpClient;
using ::testing::HasSubstr;

class HttpFullTest : public HttpFixture {
 protected:
  /// With one connection, which a request holds.
  void StartFull(HttpServer::Options options = {}) {
    options.max_connections = 1;
    if (!options.metrics) options.metrics = [] { return "a_metric 1\n"; };
    StartServer(std::move(options));
    busy_ = std::make_unique<RawHttpClient>(server_->address());
    busy_->SendRequest("POST", "/held");
    ASSERT_TRUE(held_.Get(0));
  }
  /// Of a GET, once the server has seen that there is room; 503: it does not see it.
  int StatusOnceThereIsRoom(const std::string& path) {
    int status = 503;
    for (const absl::Time give_up = absl::Now() + absl::Seconds(20); status == 503 && absl::Now() < give_up;) {
      RawHttpClient client(server_->address());
      client.SendRequest("GET", path);
      const auto response = client.ReadResponse();
      status = response ? response->status : 503;
    }
    return status;
  }
  std::unique_ptr<RawHttpClient> busy_;
};

TEST_F(HttpFullTest, AConnectionTooManyIsToldSoAndTheOthersAreServed) {
  StartServer({.max_connections = 2});
  RawHttpClient first(server_->address()), second(server_->address());
  first.SendRequest("POST", "/held");
  const auto first_answer = held_.Get(0);
  second.SendRequest("POST", "/held");
  const auto second_answer = held_.Get(1);
  ASSERT_TRUE(first_answer && second_answer);
  {
    RawHttpClient third(server_->address());
    third.SendRequest("GET", "/echo");
    const auto response = third.ReadResponse();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 503);
    EXPECT_EQ(response->headers.at("connection"), "close");
    EXPECT_THAT(response->body, HasSubstr("all 2 connections"));
    EXPECT_TRUE(third.ReadsEnd());
  }
  first_answer->Send(200, "text/plain", "", {});
  EXPECT_EQ(first.ReadResponse()->status, 200);
  EXPECT_EQ(StatusOnceThereIsRoom("/echo"), 200);
  second_answer->Send(200, "text/plain", "", {});
  EXPECT_EQ(second.ReadResponse()->status, 200);
}

TEST_F(HttpFullTest, WhoHasBeenIdleLongestMakesRoom) {
  StartServer({.max_connections = 3});
  RawHttpClient busy(server_->address()), longest(server_->address()), idle(server_->address());
  busy.SendRequest("POST", "/held");
  const auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  for (RawHttpClient* client : {&longest, &idle}) {
    client->SendRequest("GET", "/live");
    const auto response = client->ReadResponse();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    absl::SleepFor(absl::Milliseconds(300));  // the server may note an answer's end after it was read
  }
  RawHttpClient next(server_->address());
  next.SendRequest("GET", "/live");
  const auto served = next.ReadResponse();
  ASSERT_TRUE(served);
  EXPECT_EQ(served->status, 200);
  EXPECT_TRUE(longest.ReadsEnd());
  idle.SendRequest("GET", "/live");
  const auto kept = idle.ReadResponse();
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->status, 200);
  answer->Send(200, "text/plain", "", {});
  EXPECT_EQ(busy.ReadResponse()->status, 200);
}

TEST_F(HttpFullTest, WhoAsksHowTheServerIsIsAnsweredOnceAConnection) {
  StartFull({.spare_timeout = absl::Seconds(15)});
  for (const char* path : {"/live", "/health", "/metrics", "/metrics?a=b"}) {
    RawHttpClient client(server_->address());
    client.SendRequest("GET", path);
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << path;
    EXPECT_EQ(response->status, 200) << path;
    EXPECT_EQ(response->headers.at("connection"), "close") << path;
    EXPECT_TRUE(client.ReadsEnd()) << path;
  }
  RawHttpClient head(server_->address());
  head.SendRequest("HEAD", "/metrics");
  EXPECT_EQ(head.ReadResponse(/*has_body=*/false)->status, 200);
}

TEST_F(HttpFullTest, EveryOtherRequestIsRefusedBeforeItsBodyHasCome) {
  StartFull();
  for (const char* head : {"POST /echo", "GET /echo", "POST /metrics", "GET /metricsx", "GET /"}) {
    RawHttpClient client(server_->address());
    client.Send(absl::StrCat(head, " HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"));
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << head;
    EXPECT_EQ(response->status, 503) << head;
    EXPECT_THAT(response->body, HasSubstr("all 1 connections")) << head;
    EXPECT_TRUE(client.ReadsEnd()) << head;
  }
}

TEST_F(HttpFullTest, WhoSaysNothingIsRefusedSoonAndThenThereIsRoomForOthers) {
  StartFull();
  std::deque<RawHttpClient> silent;
  for (int i = 0; i < 16; ++i) silent.emplace_back(server_->address());
  EXPECT_EQ(silent.front().ReadResponse()->status, 503);
  for (RawHttpClient& client : silent) client.Close();
  EXPECT_EQ(StatusOnceThereIsRoom("/metrics"), 200);
}

TEST_F(HttpFullTest, WhoBeginsARequestHasNoMoreTimeForIt) {
  StartFull({.header_timeout = absl::Minutes(10),
             .stall_timeout = absl::Minutes(10),
             .spare_timeout = absl::Milliseconds(100)});
  for (const char* begin :
       {"G", "GET /metrics HTTP/1.1\r\nX: ", "GET /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\na"}) {
    RawHttpClient client(server_->address());
    client.Send(begin);
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << begin;
    EXPECT_EQ(response->status, 503) << begin;
    EXPECT_THAT(response->body, HasSubstr("all 1 connections")) << begin;
  }
}

TEST_F(HttpFullTest, WhoDoesNotReadTheAnswerIsCutSoon) {
  constexpr size_t kBytes = 64 << 20;  // more than the kernel takes
  StartFull({.metrics = [] { return std::string(kBytes, 'x'); },
             .stall_timeout = absl::Minutes(10),
             .spare_timeout = absl::Milliseconds(100)});
  RawHttpClient client(server_->address());
  client.SendRequest("GET", "/metrics");
  for (const absl::Time give_up = absl::Now() + absl::Seconds(20); client.Send("x") && absl::Now() < give_up;) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(client.Send("x"));
  EXPECT_LT(client.ReadAll().size(), kBytes);
}

TEST_F(HttpFullTest, BeyondThoseEveryoneIsRefused) {
  StartFull({.spare_timeout = absl::Minutes(1)});
  std::deque<RawHttpClient> slow;
  for (int i = 0; i < 16; ++i) slow.emplace_back(server_->address()).Send("GET /metrics HTTP/1.1\r\n");
  RawHttpClient client(server_->address());
  client.SendRequest("GET", "/metrics");
  EXPECT_EQ(client.ReadResponse()->status, 503);
  slow.front().Send("\r\n");
  EXPECT_EQ(slow.front().ReadResponse()->body, "a_metric 1\n");
}

}  // namespace
}  // namespace swiftcache
