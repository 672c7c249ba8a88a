// SPDX-License-Identifier: Apache-2.0
// Answers that are not streamed, and the list of models.
#include "gateway/openai/door.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/gateway/openai/door_fixture.h"

namespace swiftcache::gateway::openai {
namespace {

using ::testing::HasSubstr;

class DoorTest : public DoorFixture {};

TEST_F(DoorTest, ModelsAreListedAndFoundByName) {
  relay_.models = std::vector<relay::ModelInfo>{{"a/b", 128, 1}, {"m", 2048, 2}};
  client_->SendRequest("GET", "/v1/models");
  const json list = json::parse(client_->ReadResponse()->body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "a/b");
  EXPECT_EQ(list["data"][1]["max_model_len"], 2048);
  EXPECT_EQ(list["data"][1].value("root", ""), "m");
  for (const char* path : {"/v1/models/a/b", "/v1/models/a%2Fb"}) {
    client_->SendRequest("GET", path);
    EXPECT_EQ(json::parse(client_->ReadResponse()->body)["id"], "a/b") << path;
  }
  client_->SendRequest("GET", "/v1/models/a%0Ab");
  const auto unknown = client_->ReadResponse();
  EXPECT_EQ(unknown->status, 404);
  EXPECT_THAT(unknown->body, HasSubstr("model_not_found"));
}

TEST_F(DoorTest, ModelsThatAreNotKnownYetAreNoEmptyList) {
  relay_.models = absl::UnavailableError("not heard yet");
  for (const char* path : {"/v1/models", "/v1/models/m"}) {
    client_->SendRequest("GET", path);
    const auto answer = client_->ReadResponse();
    EXPECT_EQ(answer->status, 503) << path;
    EXPECT_THAT(answer->body, HasSubstr("not heard yet")) << path;
  }
}

TEST_F(DoorTest, TheRelayHearsWhereEachPromptCameFrom) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"Hi"}); };
  PostForJson(kCompletionsPath, CompletionBody({{"prompt", {"one", "two"}}}));
  for (const size_t prompt : {0, 1}) {
    const auto call = relay_.WaitForCall(prompt);
    ASSERT_TRUE(call);
    EXPECT_EQ(call->request.door, "http");
    EXPECT_THAT(call->request.client, ::testing::StartsWith("127.0.0.1:"));
  }
}

TEST_F(DoorTest, AChatAnswerHasTheFormOfOpenAi) {
  wall_.Advance(absl::Hours(1));  // as after a sleep, during which the process's clock stands still
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    call->usage.cached_local_tokens = 2;
    call->usage.cached_donor_tokens = 1;
    call->Say({"Hi", " you"});
  };
  const auto response = Post(kChatPath, ChatBody(), "X-Request-Id: r1\r\n");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("x-request-id"), "r1");
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const json expected = {
      {"id", "chatcmpl-r1"},
      {"object", "chat.completion"},
      {"created", absl::ToUnixSeconds(wall_.Now())},
      {"model", "m"},
      {"choices",
       {{{"index", 0},
         {"message", {{"role", "assistant"}, {"content", "Hi you"}}},
         {"logprobs", nullptr},
         {"finish_reason", "stop"}}}},
      {"usage",
       {{"prompt_tokens", 5},
        {"completion_tokens", 2},
        {"total_tokens", 7},
        {"prompt_tokens_details",
         {{"cached_tokens", 3}, {"cached_tokens_by_source", {{"local", 2}, {"donor", 1}, {"host", 0}}}}}}}};
  EXPECT_EQ(json::parse(response.body), expected);
}

TEST_F(DoorTest, ACompletionWithSeveralPromptsAndAnswersNumbersThemInOrder) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    call->Say({std::get<std::string>(call->request.input), "!"}, fleet::FinishReason::kLength);
  };
  const json answer = PostForJson(kCompletionsPath, CompletionBody({{"prompt", {"one", "three"}}, {"n", 2}}));
  EXPECT_EQ(answer["object"], "text_completion");
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], i < 2 ? "one!" : "three!");
    EXPECT_EQ(answer["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 8);  // each prompt once, whatever n is
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
}

TEST_F(DoorTest, CachedTokensAreThoseOfEachPromptsFirstAnswer) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    const bool cold = std::get<std::string>(call->request.input) == "cold";
    for (const int32_t index : {0, 1}) {
      relay::GenerateEvent event;
      event.index = index;
      event.token_ids = {1};
      event.finish = fleet::FinishReason::kStop;
      event.usage.emplace().cached_local_tokens = index == 1 ? 3 : cold ? 0 : 2;
      call->Emit(std::move(event));
    }
    call->End();
  };
  const json answer = PostForJson(kCompletionsPath, CompletionBody({{"prompt", {"cold", "warm"}}, {"n", 2}}));
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2) << "3 is what index 0 had computed";
}

TEST_F(DoorTest, EchoPutsThePromptsTextFirst) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({" world"}); };
  EXPECT_EQ(PostForJson(kCompletionsPath, CompletionBody({{"echo", true}}))["choices"][0]["text"], "hello world");
  const json ids = CompletionBody({{"echo", true}, {"prompt", {0, 1, 2}}});
  EXPECT_EQ(PostForJson(kCompletionsPath, ids)["choices"][0]["text"], "abc world");
}

TEST_F(DoorTest, IdsOfAPromptThatTheRelayRefusesAreNotEchoed) {
  relay_.check = [](const relay::GenerateRequest&) { return absl::OutOfRangeError("prompt has 3 tokens"); };
  const auto refused = Post(kCompletionsPath, CompletionBody({{"echo", true}, {"prompt", {0, 1, 2}}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(relay_.detokenized, 0);
}

TEST_F(DoorTest, CompletionLogprobsHaveTokensValuesTopsAndOffsets) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"é", "b"}); };
  const json logprobs = PostForJson(kCompletionsPath, CompletionBody({{"logprobs", 2}}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"é", "b"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({-0.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1}));                                         // characters, not bytes
  EXPECT_EQ(logprobs["top_logprobs"][0], json({{"t0", -1.0}, {"t1", -2.0}, {"é", -0.5}}));  // the chosen one as well
}

TEST_F(DoorTest, PartsOfCharactersAreSpelledAsBytesInTheLogprobsOfCompletions) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    relay::GenerateEvent event;
    event.token_ids = {1};
    event.logprobs = {
        {.token_id = 1,
         .logprob = -0.25f,
         .token = "\xe2\x82",
         .top = {{2, -0.5f, "\xe2\x83", {}}, {3, -1, "a", {}}, {4, -2, "a", {}}, {5, -3, "\xe2\x82", {}}}}};
    event.finish = fleet::FinishReason::kStop;
    call->Emit(event);
    call->End();
  };
  const auto response = Post(kCompletionsPath, CompletionBody({{"logprobs", 4}}));
  const json logprobs = json::parse(response.body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::array({R"(bytes:\xe2\x82)"}));
  EXPECT_EQ(logprobs["top_logprobs"][0],
            json({{R"(bytes:\xe2\x83)", -0.5}, {"a", -1.0}, {R"(bytes:\xe2\x82)", -0.25}}));
  EXPECT_EQ(logprobs["text_offset"], json::array({0}));
}

TEST_F(DoorTest, ChatLogprobsHaveBytesAndNoInfinities) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    relay::GenerateEvent event;
    event.text = "x";
    event.token_ids = {1};
    const float nothing = -std::numeric_limits<float>::infinity();
    event.logprobs = {{.token_id = 1, .logprob = -0.25f, .token = "\xe2\x82", .top = {{2, nothing, "z", {}}}}};
    event.finish = fleet::FinishReason::kStop;
    call->Emit(event);
    call->End();
  };
  const json answer = PostForJson(kChatPath, ChatBody({{"logprobs", true}, {"top_logprobs", 1}}));
  const json token = answer["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["bytes"], json({0xe2, 0x82}));
  EXPECT_EQ(token["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(token["logprob"], -0.25);
  EXPECT_EQ(token["top_logprobs"][0]["token"], "z");
  EXPECT_EQ(token["top_logprobs"][0]["logprob"], -9999.0);
}

TEST_F(DoorTest, PromptsThatTakeLongToTokeniseHoldUpNoOtherRequest) {
  constexpr size_t kLong = 1 << 20;
  absl::Notification done;
  std::atomic<int> tokenising = 0;
  relay_.check = [&](const relay::GenerateRequest& request) {
    if (std::get<std::string>(request.input).size() < kLong) return absl::OkStatus();
    ++tokenising;
    done.WaitForNotification();
    return absl::OutOfRangeError("too long");
  };
  std::vector<std::unique_ptr<RawHttpClient>> clients;
  for (int i = 0; i < 2; ++i) {  // as many as the server has threads
    clients.push_back(std::make_unique<RawHttpClient>(server_->address()));
    const std::string body = CompletionBody({{"prompt", std::string(kLong, 'x')}}).dump();
    clients.back()->SendRequest("POST", kCompletionsPath, body);
  }
  while (tokenising < 2) absl::SleepFor(absl::Milliseconds(1));
  client_->SendRequest("GET", "/live");
  EXPECT_EQ(client_->ReadResponse().value_or(fakes::RawResponse{}).status, 200);
  done.Notify();
  for (auto& client : clients) EXPECT_EQ(client->ReadResponse().value_or(fakes::RawResponse{}).status, 400);
}

TEST_F(DoorTest, TheRequestReachesTheRelayWithIdTraceAndDeadline) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"x"}); };
  Post(kChatPath, ChatBody({{"cache_salt", "s"}}),
       "X-Request-Id: mine\r\nTraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
       "Authorization: Bearer KEY\r\n");
  const auto& request = relay_.WaitForCall(0)->request;
  EXPECT_EQ(request.request_id, "mine");
  EXPECT_EQ(request.traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.arrived, clock_.Now());
  const auto unnamed = Post(kChatPath, ChatBody());
  EXPECT_EQ(unnamed.headers.at("x-request-id"), "gw-1");
  const auto twice = Post(kChatPath, ChatBody(), "X-Request-Id: mine\r\nX-Request-Id: the proxy's\r\n");
  EXPECT_EQ(twice.headers.at("x-request-id"), "mine");
  EXPECT_EQ(relay_.WaitForCall(1)->request.request_id, "gw-1");
}

TEST_F(DoorTest, AnswersMayComeFromAnyThreadAndAfterTheHandlerReturned) {
  client_->SendRequest("POST", kCompletionsPath, CompletionBody({{"prompt", {"a", "b"}}}).dump());
  auto first = relay_.WaitForCall(0), second = relay_.WaitForCall(1);
  ASSERT_TRUE(first && second);
  second->Say({"2"});
  first->Say({"1"});
  const json answer = json::parse(client_->ReadResponse()->body);
  EXPECT_EQ(answer["choices"][0]["text"], "1");
  EXPECT_EQ(answer["choices"][1]["text"], "2");
}

TEST_F(DoorTest, OptionsThatCannotWorkAreRefused) {
  EXPECT_EQ(Door::Create({.id_prefix = ""}, relay_, clock_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::gateway::openai
