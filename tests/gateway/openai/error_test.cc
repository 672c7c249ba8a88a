// SPDX-License-Identifier: Apache-2.0
// What goes wrong: refused requests, errors before and after the first token, clients that leave.
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "gateway/openai/api_error.h"
#include "gateway/openai/door.h"
#include "tests/gateway/openai/door_fixture.h"

namespace swiftcache::gateway::openai {
namespace {

using ::testing::HasSubstr;

class ErrorTest : public DoorFixture {
 protected:
  static json Error(const fakes::RawResponse& response) {
    const json body = json::parse(response.body, nullptr, false);
    EXPECT_TRUE(body.is_object() && body.contains("error")) << response.body;
    for (const char* field : {"message", "type", "param", "code"}) {
      EXPECT_TRUE(body.is_object() && body["error"].contains(field)) << field;
    }
    return body.is_object() ? body["error"] : json::object();
  }
};

TEST_F(ErrorTest, StatusesOfTheRelayBecomeThoseOfHttp) {
  const std::vector<std::pair<absl::StatusCode, int>> expected = {
      {absl::StatusCode::kInvalidArgument, 400}, {absl::StatusCode::kOutOfRange, 400},
      {absl::StatusCode::kNotFound, 404},        {absl::StatusCode::kResourceExhausted, 429},
      {absl::StatusCode::kUnavailable, 503},     {absl::StatusCode::kDeadlineExceeded, 504},
      {absl::StatusCode::kInternal, 500}};
  absl::Status verdict;
  relay_.check = [&](const relay::GenerateRequest&) { return verdict; };
  for (const auto& [code, http] : expected) {
    verdict = absl::Status(code, "the reason");
    for (const bool stream : {false, true}) {
      const auto response = Post(kChatPath, ChatBody({{"stream", stream}}), "X-Request-Id: r\r\n");
      EXPECT_EQ(response.status, http);
      EXPECT_EQ(response.headers.at("x-request-id"), "r");
      EXPECT_EQ(Error(response)["message"], "the reason");
      EXPECT_EQ(response.headers.count("retry-after"), http == 429 || http == 503 ? 1u : 0u);
    }
  }
}

class FullDoorTest : public ErrorTest {
 protected:
  FullDoorTest() { side_threads_.max_waiting_bytes = 1 << 20; }
};

TEST_F(FullDoorTest, WhereTooMuchWaitsForAThreadALongRequestGetsA429AndAShortOneIsServed) {
  const std::string headers = "X-Request-Id: r1, r2\r\n";
  const auto response = Post(kCompletionsPath, CompletionBody({{"prompt", std::string(1 << 20, 'x')}}), headers);
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(Error(response)["code"], "rate_limit_exceeded");
  EXPECT_THAT(std::string(Error(response)["message"]), HasSubstr("1048576"));
  EXPECT_EQ(response.headers.count("retry-after"), 1u);
  EXPECT_EQ(response.headers.at("x-request-id"), "r1");
  const auto refused = relay_.refused();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].first.request_id, "r1");
  EXPECT_EQ(refused[0].second.code(), absl::StatusCode::kResourceExhausted);
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"x"}); };
  EXPECT_EQ(Post(kCompletionsPath, CompletionBody()).status, 200);
  EXPECT_EQ(Post(kCompletionsPath, CompletionBody({{"prompt", std::string(1 << 19, 'x')}})).status, 200);
}

TEST_F(ErrorTest, WhatTheDoorRefusesTheRelayHearsOf) {
  constexpr char kTrace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const std::string headers = absl::StrCat("X-Request-Id: r1\r\ntraceparent: ", kTrace, "\r\n");
  EXPECT_EQ(Post(kChatPath, std::string("no JSON"), headers).status, 400);
  const auto refused = relay_.refused();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].first.request_id, "r1");
  EXPECT_EQ(refused[0].first.traceparent, kTrace);
  EXPECT_EQ(refused[0].first.door, "http");
  EXPECT_THAT(refused[0].first.client, ::testing::StartsWith("127.0.0.1:"));
  EXPECT_EQ(refused[0].second.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(relay_.calls(), 0u);
}

TEST_F(ErrorTest, AnUnknownModelIs404WhateverItsNameHolds) {
  relay_.check = [](const relay::GenerateRequest& request) {
    return absl::NotFoundError(absl::StrCat("model ", request.model, " is not served"));
  };
  const auto response = Post(kChatPath, ChatBody({{"model", "a\nb\r\nX: y"}}));
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(Error(response)["param"], "model");
  EXPECT_EQ(Error(response)["code"], "model_not_found");
  EXPECT_EQ(Error(response)["message"], "model a\nb\r\nX: y is not served");
  EXPECT_EQ(response.headers.count("x"), 0u);
}

TEST_F(ErrorTest, AFullQueueSaysWhenToComeBack) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    call->End(WithRetryDelay(absl::ResourceExhaustedError("queue full"), absl::Milliseconds(2500)));
  };
  const auto response =
      Post(kChatPath, ChatBody({{"stream", true}}));  // an error before the first token has its status
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "3");
  EXPECT_EQ(Error(response)["code"], "rate_limit_exceeded");
}

TEST_F(ErrorTest, APromptThatIsTooLongNamesItsField) {
  relay_.check = [](const relay::GenerateRequest&) { return absl::OutOfRangeError("too long"); };
  EXPECT_EQ(Error(Post(kChatPath, ChatBody()))["param"], "messages");
  const json error = Error(Post(kCompletionsPath, CompletionBody()));
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(error["code"], "context_length_exceeded");
}

TEST_F(ErrorTest, AWrongIdIsNamedAsTheClientSentIt) {
  relay_.check = [](const relay::GenerateRequest&) {
    return absl::InvalidArgumentError("token_ids[2] is 999999, wants 0..299");
  };
  const json error = Error(Post(kCompletionsPath, CompletionBody({{"prompt", {1, 2, 999999}}})));
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(error["message"], "prompt[2] is 999999, wants 0..299");
}

TEST_F(ErrorTest, HostileBodiesAreRefusedBeforeTheRelayHears) {
  const std::vector<std::string> bodies = {"",
                                           "not json",
                                           "{\"model\":\"m\",\"prompt\":\"\xff\"}",
                                           R"({"model":"m","prompt":"p","temperature":NaN})",
                                           R"({"model":"m","model":"n","prompt":"p"})",
                                           std::string(5 << 20, '['),
                                           R"({"model":"m","prompt":"p","top_p":7})"};
  for (const std::string& body : bodies) {
    const auto response = Post(kCompletionsPath, body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 60);
    EXPECT_EQ(Error(response)["type"], "invalid_request_error");
  }
  EXPECT_EQ(relay_.calls(), 0u);
}

TEST_F(ErrorTest, AnErrorAfterTheFirstTokenIsTheStreamsLastEvent) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    call->Emit({.index = 0, .text = "a", .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}});
    call->End(absl::UnavailableError("the engine was lost after 1 tokens"));
  };
  const auto response = Post(kChatPath, ChatBody({{"stream", true}}));
  const auto events = Events(response.body);
  EXPECT_EQ(events.back()["error"]["message"], "the engine was lost after 1 tokens");
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(Post(kCompletionsPath, CompletionBody()).status, 503);  // not streamed: the status tells
}

TEST_F(ErrorTest, OneBadPromptOfSeveralRefusesAllAndCancelsTheOthers) {
  relay_.check = [](const relay::GenerateRequest& request) {
    const bool bad = std::get<std::string>(request.input) == "bad";
    return bad ? absl::InvalidArgumentError("bad prompt") : absl::OkStatus();
  };
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    call->Emit({.index = 0, .text = "early", .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}});
  };
  const auto response = Post(kCompletionsPath, CompletionBody({{"prompt", {"good", "bad"}}, {"stream", true}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_TRUE(relay_.WaitForCall(0)->WaitCancelled());
}

TEST_F(ErrorTest, AClientThatLeavesCancelsItsRequestAtOnce) {
  for (const bool stream : {false, true}) {
    const size_t number = relay_.calls();
    auto client = std::make_unique<RawHttpClient>(server_->address());
    client->SendRequest("POST", kChatPath, ChatBody({{"stream", stream}}).dump());
    auto call = relay_.WaitForCall(number);
    ASSERT_TRUE(call);
    if (stream) {
      call->Emit({.index = 0, .text = "a", .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}});
      EXPECT_EQ(client->ReadHead()->status, 200);
    }
    EXPECT_FALSE(call->cancelled());
    client.reset();
    EXPECT_TRUE(call->WaitCancelled());
    call->Emit({.index = 0, .text = "late", .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}});
    call->End(absl::CancelledError("cancelled"));
  }
}

TEST_F(ErrorTest, ConcurrentClientsSomeOfWhichLeaveGetTheirOwnAnswers) {
  absl::Mutex mutex;
  std::vector<std::thread> speakers;
  relay_.on_generate = [&](std::shared_ptr<FakeCall> call) {
    absl::MutexLock lock(&mutex);
    speakers.emplace_back([call] {
      const auto& chat = std::get<relay::Chat>(call->request.input);
      call->Say({chat.messages[0].content, "!"});
    });
  };
  std::atomic<int> good = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) {
        RawHttpClient client(server_->address());
        json body = ChatBody({{"stream", i % 2 == 0}});
        const std::string said = absl::StrCat("c", c, "i", i);
        body["messages"][0]["content"] = said;
        client.SendRequest("POST", kChatPath, body.dump());
        if (i % 5 == 4) continue;  // leaves without reading
        const auto response = client.ReadResponse();
        if (response && response->status == 200 && response->body.find("\"" + said) != std::string::npos) ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server_->Stop(absl::Now() + absl::Seconds(20));  // after it nobody speaks up any more
  for (std::thread& speaker : speakers) speaker.join();
  EXPECT_EQ(good, 8 * 16);
}

}  // namespace
}  // namespace swiftcache::gateway::openai
