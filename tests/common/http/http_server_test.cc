// SPDX-License-Identifier: Apache-2.0
#include "common/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/common/http/http_fixture.h"
#include "tests/fakes/idle_cpu.h"

namespace swiftcache {
namespace {

using fakes::RawHttpClient;
using ::testing::HasSubstr;

class HttpServerTest : public HttpFixture {};

TEST_F(HttpServerTest, BuiltInRoutesTellLifeHealthAndMetrics) {
  std::atomic<bool> ready = false;
  StartServer({.ready = [&] { return ready.load(); }, .metrics = [] { return std::string("up 1\n"); }});
  RawHttpClient client(server_->address());
  client.SendRequest("GET", "/live");
  EXPECT_EQ(client.ReadResponse()->status, 200);
  client.SendRequest("GET", "/health");
  EXPECT_EQ(client.ReadResponse()->status, 503);
  ready = true;
  client.SendRequest("GET", "/health");
  EXPECT_EQ(client.ReadResponse()->status, 200);
  client.SendRequest("GET", "/metrics");
  const auto metrics = client.ReadResponse();
  EXPECT_EQ(metrics->body, "up 1\n");
  EXPECT_EQ(metrics->headers.at("content-type"), "text/plain; version=0.0.4");
}

TEST_F(HttpServerTest, HeadGivesTheHeadersOfGetWithoutItsBody) {
  StartServer({.metrics = [] { return std::string("up 1\n"); }});
  RawHttpClient client(server_->address());
  client.SendRequest("HEAD", "/metrics");
  const auto head = client.ReadResponse(/*has_body=*/false);
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->headers.at("content-length"), "5");
  client.SendRequest("GET", "/live");  // the connection is still in step
  EXPECT_EQ(client.ReadResponse()->status, 200);
}

TEST_F(HttpServerTest, RequestsReachTheirHandlersWhole) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/echo?a=b&c", "body");
  EXPECT_EQ(client.ReadResponse()->body, "POST /echo body");
  client.SendRequest("GET", "/tree/of/things");
  EXPECT_EQ(client.ReadResponse()->body, "GET /tree/of/things ");
  client.SendRequest("POST", "/held", "", "X-One: 1\r\nx-ONE: 2\r\n");
  ASSERT_TRUE(held_.Get(0));
  EXPECT_EQ(held_.Request(0).Header("x-one"), "1, 2");
}

TEST_F(HttpServerTest, WhatAPageOfAnotherOriginAsksButToReadIsRefused) {
  StartServer();
  RawHttpClient client(server_->address());
  const auto ask = [&client](const char* method, const std::string& header) {
    client.SendRequest(method, "/echo", "body", "Content-Type: text/plain\r\n" + header);
    return client.ReadResponse();
  };
  for (const char* site : {"cross-site", "same-site"}) {
    const auto refused = ask("POST", absl::StrCat("Sec-Fetch-Site: ", site, "\r\n"));
    EXPECT_EQ(refused->status, 403);
    EXPECT_THAT(refused->body, HasSubstr(absl::StrCat("of another origin (Sec-Fetch-Site: ", site, ")")));
    EXPECT_EQ(ask("GET", absl::StrCat("Sec-Fetch-Site: ", site, "\r\n"))->status, 200);
  }
  for (const char* header : {"", "Sec-Fetch-Site: same-origin\r\n", "Sec-Fetch-Site: none\r\n"}) {
    EXPECT_EQ(ask("POST", header)->status, 200) << header;
  }
}

TEST_F(HttpServerTest, HandlersLearnWhereARequestCameFrom) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  ASSERT_TRUE(held_.Get(0));
  EXPECT_THAT(held_.Request(0).client, ::testing::MatchesRegex("127\\.0\\.0\\.1:[0-9]+"));
}

TEST_F(HttpServerTest, ChunkedRequestBodiesAreJoined) {
  StartServer();
  RawHttpClient client(server_->address());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  client.Send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.ReadResponse()->body, "POST /echo abcde");
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrderThoughTheFirstIsSlow) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  for (int i = 0; i < 40; ++i) client.SendRequest("POST", "/echo", std::to_string(i));
  auto first = held_.Get(0);
  ASSERT_TRUE(first);
  first->Send(200, "text/plain", "first", {});
  EXPECT_EQ(client.ReadResponse()->body, "first");
  for (int i = 0; i < 40; ++i) EXPECT_EQ(client.ReadResponse()->body, "POST /echo " + std::to_string(i));
}

TEST_F(HttpServerTest, WhatAnAnswerHoldsIsLetGoOnceItIsWrittenOrTheClientHasGone) {
  StartServer();
  for (const bool reads : {true, false}) {
    RawHttpClient client(server_->address());
    client.SendRequest("POST", "/held");
    auto answer = held_.Get(reads ? 0 : 1);
    ASSERT_TRUE(answer);
    const auto let_go = std::make_shared<absl::Notification>();  // on the heap for TSan, as below
    std::shared_ptr<void> held(let_go.get(), [let_go](void*) { let_go->Notify(); });
    answer->Send(200, "text/plain", std::string(64 << 20, 'x'), {}, std::move(held));  // more than the kernel takes
    EXPECT_FALSE(let_go->WaitForNotificationWithTimeout(absl::Milliseconds(100)));
    reads ? void(client.ReadResponse()) : client.Close();
    EXPECT_TRUE(Happens(*let_go));
  }
}

TEST_F(HttpServerTest, StreamsArriveChunkByChunk) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->StartStream(200, "text/event-stream", {{"X-Request-Id", "r1"}});
  const auto head = client.ReadHead();
  EXPECT_EQ(head->headers.at("x-request-id"), "r1");
  EXPECT_TRUE(answer->Write("one"));
  EXPECT_EQ(client.ReadChunk(), "one");
  EXPECT_TRUE(answer->Write(""));  // nothing, and not the end
  EXPECT_TRUE(answer->Write("two"));
  EXPECT_EQ(client.ReadChunk(), "two");
  answer->Finish();
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_FALSE(answer->Write("late"));
  client.SendRequest("GET", "/live");
  EXPECT_EQ(client.ReadResponse()->status, 200);
}

TEST_F(HttpServerTest, MoreThanAClientMayLeaveUnreadArrivesWholeWhereItReads) {
  StartServer({.max_unsent_bytes = 1 << 20, .burst_time = absl::Minutes(1)});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->StartStream(200, "text/event-stream", {});
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(answer->Write(std::string(1 << 20, 'x')));  // at once
  answer->Finish();
  const auto response = client.ReadResponse();
  ASSERT_TRUE(response && response->complete);
  EXPECT_EQ(response->body.size(), size_t{12} << 20);
}

TEST_F(HttpServerTest, Http10ClientsGetAPlainBodyThatTheCloseEnds) {
  StartServer();
  RawHttpClient client(server_->address());
  client.Send("POST /held HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->StartStream(200, "text/plain", {});
  answer->Write("abc");
  answer->Finish();
  EXPECT_THAT(client.ReadAll(), ::testing::EndsWith("\r\n\r\nabc"));
}

TEST_F(HttpServerTest, AClientThatGoesWhileItsAnswerIsMadeIsNoticedAtOnce) {
  StartServer();
  for (const bool reset : {false, true}) {
    held_.Drop();
    auto client = std::make_unique<RawHttpClient>(server_->address());
    client->SendRequest("POST", "/held");
    auto answer = held_.Get(0);
    ASSERT_TRUE(answer);
    // Not on the stack: TSan does not see how Abseil keeps it alive until Notify has returned.
    const auto gone = std::make_shared<absl::Notification>();
    answer->OnDisconnect([gone] { gone->Notify(); });
    reset ? client->Reset() : client->Close();
    EXPECT_TRUE(Happens(*gone));
    EXPECT_FALSE(answer->Write("x"));
    bool at_once = false;
    answer->OnDisconnect([&] { at_once = true; });
    EXPECT_TRUE(at_once);
  }
}

TEST_F(HttpServerTest, DisconnectIsNotReportedAfterTheAnswerIsComplete) {
  StartServer();
  auto client = std::make_unique<RawHttpClient>(server_->address());
  client->SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  std::atomic<bool> gone = false;
  answer->OnDisconnect([&] { gone = true; });
  answer->Send(200, "text/plain", "done", {});
  EXPECT_EQ(client->ReadResponse()->body, "done");
  client.reset();
  server_->Stop(absl::Now() + absl::Seconds(5));  // after it no connection is left to report anything
  EXPECT_FALSE(gone);
}

TEST_F(HttpServerTest, AnAnswerThatTheHandlerDropsIsAnError) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  ASSERT_TRUE(held_.Get(0));
  held_.Drop();
  EXPECT_EQ(client.ReadResponse()->status, 500);
  client.SendRequest("GET", "/throws");
  EXPECT_EQ(client.ReadResponse()->status, 500);
}

TEST_F(HttpServerTest, AddressInUseNamesTheAddressAndTheFlag) {
  StartServer();
  const auto second = HttpServer::Create({.listen = server_->address()}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("--http_listen=" + server_->address() + ": the address is in use"));
}

TEST_F(HttpServerTest, AnAddressThatThisMachineMayYetGetIsNoMistake) {
  const auto server = HttpServer::Create({.listen = "192.0.2.1:0"}, {});  // RFC 5737
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("--http_listen=192.0.2.1:0: this machine has no such"));
}

TEST_F(HttpServerTest, AddressesThatCannotBeAreRefused) {
  for (const char* listen : {"", "8000", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:x", "no host:1"}) {
    const auto server = HttpServer::Create({.listen = listen}, {});
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << listen;
    EXPECT_THAT(std::string(server.status().message()), HasSubstr(std::string("--http_listen=") + listen));
  }
}

TEST_F(HttpServerTest, StopLetsAnAnswerUnderWayEndAndRefusesNewConnections) {
  StartServer();
  RawHttpClient busy(server_->address()), idle(server_->address());
  busy.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  std::thread stopper([&] { server_->Stop(absl::Now() + absl::Seconds(20)); });
  EXPECT_TRUE(idle.ReadsEnd());
  answer->Send(200, "text/plain", "still served", {});
  EXPECT_EQ(busy.ReadResponse()->body, "still served");
  EXPECT_TRUE(busy.ReadsEnd());
  busy.Close();
  stopper.join();
  EXPECT_FALSE(RawHttpClient(server_->address()).connected());
}

TEST_F(HttpServerTest, StopCutsWhatIsNotDoneByTheDeadlineAndAnswersMayOutliveTheServer) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  held_.Drop();
  absl::Notification gone;
  answer->OnDisconnect([&] { gone.Notify(); });
  server_->Stop(absl::Now() + absl::Milliseconds(50));
  EXPECT_TRUE(gone.HasBeenNotified());
  server_.reset();
  EXPECT_FALSE(answer->Write("x"));
  answer->Finish();
  answer.reset();
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, AnIdleServerUsesNoCpu) {
  StartServer();
  RawHttpClient open(server_->address());
  open.SendRequest("GET", "/live");
  EXPECT_EQ(open.ReadResponse()->status, 200);
  EXPECT_LT(fakes::IdleCpuShare(), 0.01);
}

TEST_F(HttpServerTest, ManyClientsAtOnceAreAllServed) {
  StartServer();
  std::atomic<int> good = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      RawHttpClient client(server_->address());
      for (int k = 0; k < 50; ++k) {
        const std::string body = std::to_string(i * 1000 + k);
        client.SendRequest("POST", "/echo", body);
        const auto response = client.ReadResponse();
        if (response && response->body == "POST /echo " + body) ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 16 * 50);
}

}  // namespace
}  // namespace swiftcache
