// SPDX-License-Identifier: Apache-2.0
// Clients that are slow, broken or greedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "common/http/http_server.h"
#include "tests/common/http/http_fixture.h"

namespace swiftcache {
namespace {

using fakes::RawHttpClient;
using ::testing::HasSubstr;

class HttpHostileTest : public HttpFixture {
 protected:
  /// Of a request that others leave no room for until the server has seen that they have gone.
  int StatusOnceThereIsRoom(const std::string& method, const std::string& path, const std::string& body = "") {
    int status = 503;
    for (const absl::Time give_up = absl::Now() + absl::Seconds(20); status == 503 && absl::Now() < give_up;) {
      RawHttpClient client(server_->address());
      client.SendRequest(method, path, body);
      const auto response = client.ReadResponse();
      status = response ? response->status : 503;
    }
    return status;
  }
};

TEST_F(HttpHostileTest, UnknownPathsAndMethodsAreJsonErrors) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("GET", "/nowhere");
  const auto unknown = client.ReadResponse();
  EXPECT_EQ(unknown->status, 404);
  EXPECT_THAT(unknown->body, HasSubstr("\"message\":\"no such path: GET /nowhere; there are "));
  for (const char* path : {"/echo", "/health", "/live", "/metrics"}) EXPECT_THAT(unknown->body, HasSubstr(path));
  client.SendRequest("DELETE", "/echo");
  const auto wrong = client.ReadResponse();
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(wrong->headers.at("allow"), "GET, HEAD, POST");
  EXPECT_THAT(unknown->body, HasSubstr(R"("code":"not_found")"));
  EXPECT_THAT(wrong->body, HasSubstr(R"("code":"method_not_allowed")"));
}

TEST_F(HttpHostileTest, MalformedRequestsGetA400AndTheEnd) {
  StartServer();
  for (const char* bytes : {"hello\r\n\r\n", "GET /live HTTP/9.9\r\n\r\n", "GET /live HTTP/1.1\r\nno colon\r\n\r\n",
                            "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                            "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                            "POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
                            "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                            "\x16\x03\x01\x02"
                            "\r\n\r\n"}) {
    RawHttpClient client(server_->address());
    client.Send(bytes);
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << bytes;
    EXPECT_EQ(response->status, 400) << bytes;
    EXPECT_EQ(response->headers.at("connection"), "close");
    EXPECT_TRUE(client.ReadsEnd());
  }
}

TEST_F(HttpHostileTest, ABodyOverTheLimitIsRefusedAndTheClientReadsWhy) {
  StartServer({.max_body_bytes = 1000});
  RawHttpClient announced(server_->address());
  announced.SendRequest("POST", "/echo", std::string(2 << 20, 'x'));  // keeps sending although it is refused
  const auto response = announced.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 413);
  EXPECT_THAT(response->body, HasSubstr("1000 bytes"));
  RawHttpClient chunked(server_->address());
  chunked.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(0x800, 'x') + "\r\n");
  EXPECT_EQ(chunked.ReadResponse()->status, 413);
}

TEST_F(HttpHostileTest, ABodyAtTheLimitIsTaken) {
  StartServer({.max_body_bytes = 10 << 20});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/echo", std::string(10 << 20, 'x'));
  EXPECT_EQ(client.ReadResponse()->body.size(), std::string("POST /echo ").size() + (10 << 20));
}

TEST_F(HttpHostileTest, PipelinedBodiesWaitOutsideOnceOneBodysWorthIsHeld) {
  constexpr int64_t kBody = 8 << 20;
  constexpr int kRequests = 8;
  StartServer({.max_body_bytes = kBody});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto first = held_.Get(0);
  ASSERT_TRUE(first);
  std::atomic<int64_t> sent = 0;
  std::thread sender([&] {
    const std::string piece(64 << 10, 'x');
    for (int i = 0; i < kRequests; ++i) {
      client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(kBody) + "\r\n\r\n");
      for (int64_t left = kBody; left > 0; left -= piece.size()) sent += client.Send(piece) ? piece.size() : 0;
    }
  });
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  for (int64_t before = -1; before != sent || (sent <= kBody / 2 && absl::Now() < give_up);) {
    before = sent;  // until nothing more is taken
    absl::SleepFor(absl::Milliseconds(500));
  }
  EXPECT_GT(sent, kBody / 2);
  EXPECT_LT(sent, 4 * kBody) << "wants one body held, and what the sockets' buffers take";
  first->Send(200, "text/plain", "first", {});
  EXPECT_EQ(client.ReadResponse()->body, "first");
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(client.ReadResponse()->body.size(), kBody + strlen("POST /echo "));
  sender.join();
}

TEST_F(HttpHostileTest, BodiesOfAllConnectionsTogetherAreBoundedUntilTheyAreAnswered) {
  const std::string body(600 << 10, 'x');
  StartServer({.max_body_bytes = 1 << 20, .max_held_body_bytes = 1 << 20});
  RawHttpClient first(server_->address()), other(server_->address());
  first.SendRequest("POST", "/held", body);
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  {
    RawHttpClient second(server_->address());
    second.SendRequest("POST", "/echo", body);
    const auto refused = second.ReadResponse();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 503);
    EXPECT_EQ(refused->headers.at("retry-after"), "1");
    EXPECT_EQ(refused->headers.at("connection"), "close");
    EXPECT_THAT(refused->body, HasSubstr("as many bytes of request bodies as it may (1048576)"));
    EXPECT_THAT(refused->body, HasSubstr(R"("code":"unavailable")"));
    EXPECT_TRUE(second.ReadsEnd());
  }
  other.SendRequest("GET", "/live");
  EXPECT_EQ(other.ReadResponse()->status, 200) << "what has no body is served";
  other.SendRequest("POST", "/echo", std::string(100 << 10, 'x'));
  EXPECT_EQ(other.ReadResponse()->status, 200) << "what has room is served";
  answer->Send(200, "text/plain", "first", {});
  EXPECT_EQ(first.ReadResponse()->body, "first");
  for (int i = 0; i < 3; ++i) {
    other.SendRequest("POST", "/echo", std::string(1 << 20, 'x'));
    EXPECT_EQ(other.ReadResponse()->status, 200) << "an answered body is held no more";
  }
}

TEST_F(HttpHostileTest, AConnectionThatEndsGivesItsBodiesBack) {
  const std::string body(600 << 10, 'x');
  StartServer({.max_body_bytes = 1 << 20, .max_held_body_bytes = 1 << 20});
  for (size_t i = 0; i < 3; ++i) {
    RawHttpClient client(server_->address());
    client.SendRequest("POST", "/held", body);
    auto answer = held_.Get(i);
    ASSERT_TRUE(answer);
    const auto gone = std::make_shared<absl::Notification>();  // on the heap for TSan, as in http_server_test.cc
    answer->OnDisconnect([gone] { gone->Notify(); });
    client.Close();
    EXPECT_TRUE(Happens(*gone));
  }
  for (const bool reset : {true, false}) {
    RawHttpClient half(server_->address());
    half.Send("POST /held HTTP/1.1\r\nHost: a\r\nContent-Length: 700000\r\n\r\n" + body);
    reset ? half.Reset() : half.Close();
  }
  EXPECT_EQ(StatusOnceThereIsRoom("POST", "/echo", std::string(1 << 20, 'x')), 200);
}

TEST_F(HttpHostileTest, EndlessHeadersAreRefused) {
  StartServer();
  RawHttpClient client(server_->address());
  client.Send("GET /live HTTP/1.1\r\nX: " + std::string(200 << 10, 'x'));
  EXPECT_EQ(client.ReadResponse()->status, 431);
}

TEST_F(HttpHostileTest, EndlessHeadersOfChunksAndEndlessTrailersAreRefused) {
  StartServer({.stall_timeout = absl::Seconds(15)});  // what is sent may come in pieces, on a busy machine
  for (const std::string begin : {"5;x=", "5\r\nabcde\r\n5;x=", "0\r\nX: "}) {
    RawHttpClient client(server_->address());
    client.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + begin + std::string(200 << 10, 'x'));
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << begin;
    EXPECT_EQ(response->status, 431) << begin;
  }
}

TEST_F(HttpHostileTest, ManyShortHeadersAreRefused) {
  StartServer();
  std::string fields;
  for (int i = 0; i < 254; ++i) absl::StrAppend(&fields, "a", i, ":\r\n");
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/echo", "x", fields);  // with two of its own
  EXPECT_EQ(client.ReadResponse()->status, 200);
  client.SendRequest("POST", "/echo", "x", fields + "b:\r\n");
  const auto refused = client.ReadResponse();
  EXPECT_EQ(refused->status, 431);
  EXPECT_THAT(refused->body, HasSubstr("more than 256 fields"));
  EXPECT_TRUE(client.ReadsEnd());
}

int OptionOf(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  return getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

// Of a client whose host has vanished nothing is heard, not even an end.
TEST_F(HttpHostileTest, AClientThatWaitsForItsAnswerIsAskedByTheKernelWhetherItIsThere) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  ASSERT_TRUE(held_.Get(0));
  const int fd = ServerEndOf(client.fd());
  ASSERT_GE(fd, 0);
  EXPECT_EQ(OptionOf(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_LE(OptionOf(fd, IPPROTO_TCP, TCP_KEEPIDLE), 30);
  EXPECT_LE(OptionOf(fd, IPPROTO_TCP, TCP_KEEPINTVL) * OptionOf(fd, IPPROTO_TCP, TCP_KEEPCNT), 30);
  // The kernel does not ask while bytes of a stream are on their way.
  EXPECT_GT(OptionOf(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  EXPECT_LE(OptionOf(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 60'000);
}

TEST_F(HttpHostileTest, SlowHeadersAndSlowBodiesAreCut) {
  StartServer({.header_timeout = absl::Milliseconds(100), .stall_timeout = absl::Milliseconds(100)});
  RawHttpClient header(server_->address()), body(server_->address());
  header.Send("GET /live HTTP/1.1\r\nHos");
  body.Send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(header.ReadResponse()->status, 408);
  EXPECT_TRUE(header.ReadsEnd());
  EXPECT_EQ(body.ReadResponse()->status, 408);
  EXPECT_TRUE(body.ReadsEnd());
}

TEST_F(HttpHostileTest, ASenderOfSingleBytesIsCutAlthoughItNeverPauses) {
  StartServer({.header_timeout = absl::Milliseconds(200)});
  RawHttpClient client(server_->address());
  const absl::Time start = absl::Now();
  client.Send("GET /live HTTP/1.1\r\nX: ");
  while (client.Send("x") && absl::Now() < start + absl::Seconds(10)) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(HttpHostileTest, IdleConnectionsAreClosedWithoutAWord) {
  StartServer({.idle_timeout = absl::Milliseconds(50)});
  RawHttpClient client(server_->address());
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpHostileTest, ALongAnswerIsNoIdleTime) {
  StartServer(
      {.header_timeout = absl::Seconds(1), .idle_timeout = absl::Seconds(1), .stall_timeout = absl::Seconds(1)});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  absl::SleepFor(absl::Seconds(3));
  answer->Send(200, "text/plain", "at last", {});
  EXPECT_EQ(client.ReadResponse()->body, "at last");
}

TEST_F(HttpHostileTest, ALargeAnswerThatIsReadSlowlyIsNoIdleTime) {
  constexpr size_t kBytes = 64 << 20;  // more than the kernel's buffers take
  StartServer({.idle_timeout = absl::Seconds(1)});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->Send(200, "text/plain", std::string(kBytes, 'x'), {});
  absl::SleepFor(absl::Seconds(3));
  const auto response = client.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_TRUE(response->complete);
  EXPECT_EQ(response->body.size(), kBytes);
  EXPECT_TRUE(client.ReadsEnd()) << "and now it is idle";
}

TEST_F(HttpHostileTest, AClientThatDoesNotReadItsStreamIsCut) {
  StartServer({.max_unsent_bytes = 1 << 20});
  RawHttpClient client(server_->address());
  absl::Notification gone;
  const auto answer = BeginStream(client, gone);
  ASSERT_TRUE(answer);
  int64_t accepted_bytes = 0;
  const std::string chunk(64 << 10, 'x');
  while (answer->Write(chunk) && accepted_bytes < (int64_t{1} << 30)) accepted_bytes += chunk.size();
  EXPECT_LT(accepted_bytes, int64_t{64} << 20);  // the limit and what the kernel's buffers take
  EXPECT_TRUE(Happens(gone));
  EXPECT_FALSE(answer->Write("x"));
}

TEST_F(HttpHostileTest, AClientThatLeavesABurstUnreadIsCut) {
  StartServer({.max_unsent_bytes = 1 << 20, .burst_time = absl::Milliseconds(50)});
  RawHttpClient client(server_->address());
  absl::Notification gone;
  const auto answer = BeginStream(client, gone);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->Write(std::string(15 << 20, 'x')));  // more than the kernel takes, and the limit
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_FALSE(answer->Write("x"));
  EXPECT_TRUE(Happens(gone));
}

TEST_F(HttpHostileTest, AClientThatReadsNothingOfALargeAnswerIsCut) {
  StartServer({.stall_timeout = absl::Milliseconds(200)});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->Send(200, "text/plain", std::string(64 << 20, 'x'), {});
  for (const absl::Time give_up = absl::Now() + absl::Seconds(5); client.Send("x") && absl::Now() < give_up;) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(client.Send("x")) << "within a fraction of a second, and before these would be a late request";
  EXPECT_LT(client.ReadAll().size(), size_t{64} << 20);
}

// One wait watches all writes: it has come to its end, or is on its way, when the client stops.
TEST_F(HttpHostileTest, AClientThatHasReadEarlierAnswersIsCutAsSoon) {
  StartServer({.stall_timeout = absl::Milliseconds(300)});
  size_t asked = 0;
  for (const absl::Duration pause : {absl::Milliseconds(150), absl::Milliseconds(600)}) {
    RawHttpClient client(server_->address());
    client.SendRequest("GET", "/live");
    EXPECT_EQ(client.ReadResponse()->status, 200);
    absl::SleepFor(pause);
    client.SendRequest("POST", "/held");
    auto answer = held_.Get(asked++);
    ASSERT_TRUE(answer);
    answer->Send(200, "text/plain", std::string(64 << 20, 'x'), {});
    const absl::Time give_up = absl::Now() + absl::Seconds(5);
    while (client.Send("x") && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_FALSE(client.Send("x")) << pause;
    EXPECT_LT(client.ReadAll().size(), size_t{64} << 20) << pause;
  }
}

TEST_F(HttpHostileTest, AClientThatReadsOnHoweverSlowlyIsNotCut) {
  constexpr size_t kBytes = 64 << 20;
  StartServer({.stall_timeout = absl::Seconds(2)});
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held", "", "Connection: close\r\n");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->Send(200, "text/plain", std::string(kBytes, 'x'), {});
  std::string block(1 << 20, ' ');
  size_t read = 0;
  for (const absl::Time end = absl::Now() + absl::Seconds(4.5); absl::Now() < end;) {
    read += static_cast<size_t>(recv(client.fd(), block.data(), block.size(), MSG_WAITALL));
    absl::SleepFor(absl::Milliseconds(160));
  }
  ASSERT_LT(read, kBytes);
  EXPECT_GT(read + client.ReadAll().size(), kBytes);
}

TEST_F(HttpHostileTest, AnAnswerThatWasReadTakesNoMoreMemory) {
  StartServer({.max_unsent_bytes = 64 << 20, .burst_time = absl::Minutes(1)});
  RawHttpClient client(server_->address());
  client.SendRequest("GET", "/live");
  client.ReadResponse();
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };  // 0 with a sanitizer's allocator
  const size_t before = allocated();
  client.SendRequest("POST", "/held");
  const auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->StartStream(200, "text/plain", {});
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(answer->Write(std::string(2 << 20, 'x')));
  answer->Finish();
  ASSERT_TRUE(client.ReadHead());
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(client.ReadChunk());
  ASSERT_TRUE(client.ReadChunk());
  for (const absl::Time give_up = absl::Now() + absl::Seconds(5);
       allocated() > before + (32 << 20) && absl::Now() < give_up;) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_LT(allocated(), before + (32 << 20)) << "of 128 MiB; the connection is idle";
}

TEST_F(HttpHostileTest, ExpectContinueIsAnsweredBeforeTheBodyIsSent) {
  StartServer();
  RawHttpClient client(server_->address());
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadResponse()->status, 100);
  client.Send("abc");
  EXPECT_EQ(client.ReadResponse()->body, "POST /echo abc");
}

TEST_F(HttpHostileTest, ExpectContinueBehindASlowAnswerWaitsItsTurn) {
  StartServer();
  RawHttpClient client(server_->address());
  client.SendRequest("POST", "/held");
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  auto answer = held_.Get(0);
  ASSERT_TRUE(answer);
  answer->Send(200, "text/plain", "first", {});
  EXPECT_EQ(client.ReadResponse()->body, "first");
  EXPECT_EQ(client.ReadResponse()->status, 100);
  client.Send("abc");
  EXPECT_EQ(client.ReadResponse()->body, "POST /echo abc");
}

TEST_F(HttpHostileTest, AClientThatOnlyStopsSendingStillGetsAnAnswerThatIsComplete) {
  StartServer();
  RawHttpClient client(server_->address());
  client.Send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n");
  client.StopSending();
  EXPECT_EQ(client.ReadResponse()->status, 200);
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpHostileTest, ConnectionsCutAnywhereLeaveTheServerServing) {
  StartServer();
  const std::string request = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nabcde";
  for (size_t cut = 0; cut <= request.size(); ++cut) {
    RawHttpClient client(server_->address());
    client.Send(request.substr(0, cut));
    cut % 2 ? client.Close() : client.Reset();
  }
  RawHttpClient client(server_->address());
  client.SendRequest("GET", "/live");
  EXPECT_EQ(client.ReadResponse()->status, 200);
}

}  // namespace
}  // namespace swiftcache
