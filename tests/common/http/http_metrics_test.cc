// SPDX-License-Identifier: Apache-2.0
#include "common/http/http_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/common/http/http_fixture.h"

namespace swiftcache {
namespace {

using fakes::RawHttpClient;
using ::testing::HasSubstr;
using ::testing::Not;

class HttpMetricsTest : public HttpFixture {
 protected:
  void Start(HttpServer::Options options = {}) {
    http_metrics_.Watch(options);
    StartServer(std::move(options));
  }
  /// The status of the response to these bytes, from a client of their own.
  int StatusOf(const std::string& bytes) {
    RawHttpClient client(server_->address());
    client.Send(bytes);
    const auto response = client.ReadResponse();
    return response ? response->status : 0;
  }
  std::string Scrape() {
    http_metrics_.Export(metrics_);
    return metrics_.Serialize();
  }
  static std::string Responses(int status, int count) {
    return absl::StrCat("swiftcache_http_responses_total{code=\"", status, "\"} ", count, "\n");
  }
  static constexpr char kNobodyCut[] = "swiftcache_http_slow_readers_cut_total 0\n";
  static constexpr char kOneCut[] = "swiftcache_http_slow_readers_cut_total 1\n";

  HttpMetrics http_metrics_;
  Metrics metrics_;
};

TEST_F(HttpMetricsTest, ResponsesAreCountedByStatusWhoeverGivesThem) {
  Start({.max_body_bytes = 1000,
         .ready = [] { return false; },
         .header_timeout = absl::Milliseconds(50),
         .stall_timeout = absl::Seconds(20)});
  std::string fields;  // too many, and still one segment: what comes in pieces may come too slowly, on a busy machine
  for (int i = 0; i < 300; ++i) absl::StrAppend(&fields, "a:\r\n");
  EXPECT_EQ(StatusOf("GET /live HTTP/1.1\r\n\r\n"), 200);
  EXPECT_EQ(StatusOf("GET /live HTTP/1.1\r\n\r\n"), 200);
  EXPECT_EQ(StatusOf("hello\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\n\r\n"), 403);
  EXPECT_EQ(StatusOf("GET /nowhere HTTP/1.1\r\n\r\n"), 404);
  EXPECT_EQ(StatusOf("DELETE /echo HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(StatusOf("GET /live HTTP/1.1\r\nHos"), 408);
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(StatusOf("GET /live HTTP/1.1\r\n" + fields + "\r\n"), 431);
  EXPECT_EQ(StatusOf("GET /throws HTTP/1.1\r\n\r\n"), 500);
  EXPECT_EQ(StatusOf("GET /health HTTP/1.1\r\n\r\n"), 503);
  const std::string scraped = Scrape();
  EXPECT_THAT(scraped, HasSubstr(Responses(200, 2)));
  for (const int status : {400, 403, 404, 405, 408, 413, 431, 500, 503}) {
    EXPECT_THAT(scraped, HasSubstr(Responses(status, 1)));
  }
  EXPECT_THAT(scraped, HasSubstr(kNobodyCut));
}

TEST_F(HttpMetricsTest, WhatHasNotHappenedYetIsZero) {
  Start();
  const std::string scraped = Scrape();
  for (const int status : {200, 400, 403, 404, 405, 408, 413, 429, 431, 500, 503, 504}) {
    EXPECT_THAT(scraped, HasSubstr(Responses(status, 0)));
  }
}

TEST_F(HttpMetricsTest, AConnectionTooManyIsCounted) {
  Start({.max_connections = 1});
  RawHttpClient first(server_->address());
  first.SendRequest("POST", "/held");
  ASSERT_TRUE(held_.Get(0));
  EXPECT_EQ(StatusOf(""), 503);
  EXPECT_THAT(Scrape(), HasSubstr(Responses(503, 1)));
}

TEST_F(HttpMetricsTest, AStreamIsOneResponseAndToContinueIsNone) {
  Start();
  RawHttpClient client(server_->address());
  client.Send("POST /held HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadResponse()->status, 100);
  client.Send("abc");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->StartStream(200, "text/plain", {});
  for (int i = 0; i < 5; ++i) answer->Write("x");
  answer->Finish();
  EXPECT_EQ(client.ReadResponse()->body, "xxxxx");
  const std::string scraped = Scrape();
  EXPECT_THAT(scraped, HasSubstr(Responses(200, 1)));
  EXPECT_THAT(scraped, Not(HasSubstr("code=\"100\"")));
}

TEST_F(HttpMetricsTest, WhatIsCountedBetweenTwoScrapesIsAddedOnce) {
  Start();
  for (int scrapes = 1; scrapes <= 3; ++scrapes) {
    EXPECT_EQ(StatusOf("GET /live HTTP/1.1\r\n\r\n"), 200);
    EXPECT_THAT(Scrape(), HasSubstr(Responses(200, scrapes)));
    EXPECT_THAT(Scrape(), HasSubstr(Responses(200, scrapes)));
  }
}

TEST_F(HttpMetricsTest, ScrapesAtOnceEachHaveAllThatWasCountedBefore) {
  HttpServer::Options options;
  http_metrics_.Watch(options);
  std::atomic<int> counted = 0, missed = 0;
  const auto scrape = [&] {
    for (int i = 0; i < 2000; ++i) {
      options.on_response(200);
      const int before = ++counted;
      http_metrics_.Export(metrics_);
      if (metrics_.Counter("swiftcache_http_responses_total", "", {{"code", "200"}}).Value() < before) ++missed;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(scrape);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missed, 0);
  EXPECT_THAT(Scrape(), HasSubstr(Responses(200, counted)));
}

TEST_F(HttpMetricsTest, AClientThatLeavesTooMuchOfAStreamUnreadIsCountedOnce) {
  Start({.max_unsent_bytes = 1 << 20});
  RawHttpClient client(server_->address());
  absl::Notification gone;
  const auto answer = BeginStream(client, gone);
  ASSERT_TRUE(answer);
  while (answer->Write(std::string(64 << 10, 'x'))) {
  }
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(answer->Write(std::string(2 << 20, 'x')));
  EXPECT_TRUE(Happens(gone));
  EXPECT_THAT(Scrape(), HasSubstr(kOneCut));
}

TEST_F(HttpMetricsTest, AClientThatTakesNothingOfAnAnswerIsCounted) {
  Start({.stall_timeout = absl::Milliseconds(100)});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->Send(200, "text/plain", std::string(64 << 20, 'x'), {});
  answer.reset();
  for (int i = 0; i < 2000 && Scrape().find(kOneCut) == std::string::npos; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_THAT(Scrape(), HasSubstr(kOneCut));
}

TEST_F(HttpMetricsTest, AClientThatGoesAndOneThatStaysBehindItsLastAnswerWereNotSlow) {
  Start();
  RawHttpClient goes(server_->address()), stays(server_->address());
  goes.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  absl::Notification gone;
  answer->OnDisconnect([&] { gone.Notify(); });
  goes.Reset();
  EXPECT_TRUE(Happens(gone));
  stays.Send("GET /live HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(stays.ReadResponse()->status, 200);
  EXPECT_TRUE(stays.ReadsEnd());
  while (stays.Send("x")) absl::SleepFor(absl::Milliseconds(5));  // until the server has lost its patience with it
  EXPECT_THAT(Scrape(), HasSubstr(kNobodyCut));
}

}  // namespace
}  // namespace swiftcache
