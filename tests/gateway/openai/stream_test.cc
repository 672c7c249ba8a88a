// SPDX-License-Identifier: Apache-2.0
// Answers as server-sent events.
#include "gateway/openai/door.h"
#include "gateway/openai/response.h"
#include "tests/gateway/openai/door_fixture.h"

namespace swiftcache::gateway::openai {
namespace {

using ::testing::StartsWith;

class StreamTest : public DoorFixture {
 protected:
  std::vector<json> Stream(const std::string& path, json body) {
    body["stream"] = true;
    const auto response = Post(path, body);
    EXPECT_EQ(response.status, 200);
    EXPECT_THAT(response.headers.at("content-type"), StartsWith("text/event-stream"));
    return Events(response.body);
  }
};

TEST_F(StreamTest, AChatStreamBeginsWithTheRoleAndEndsWithDone) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"Hi", " you"}); };
  const auto events = Stream(kChatPath, ChatBody());
  ASSERT_EQ(events.size(), 3u);
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], "chatcmpl-gw-1");
    EXPECT_EQ(event["choices"].size(), 1u);  // clients index choices[0] on every chunk
    EXPECT_FALSE(event.contains("usage"));
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"], json({{"content", "Hi"}}));
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(events[2]["choices"][0]["delta"], json({{"content", " you"}}));
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
}

TEST_F(StreamTest, ACompletionStreamHasTextAndTheEchoFirst) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"a", "b"}, fleet::FinishReason::kLength); };
  const auto events = Stream(kCompletionsPath, CompletionBody({{"echo", true}}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["object"], "text_completion");
  EXPECT_EQ(events[0]["choices"][0]["text"], "hello");
  EXPECT_EQ(events[1]["choices"][0]["text"], "a");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "length");
}

TEST_F(StreamTest, APromptThatManyAnswersEchoArrivesWhole) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"a"}); };
  const std::string prompt(40'000, 'p');
  const auto events = Stream(kCompletionsPath, CompletionBody({{"echo", true}, {"prompt", prompt}, {"n", 128}}));
  ASSERT_EQ(events.size(), 256u);
  EXPECT_EQ(events[254]["choices"][0]["text"], prompt);
  EXPECT_EQ(events[255]["choices"][0]["index"], 127);
}

TEST_F(StreamTest, TheUsageChunkComesOnlyWhenAskedForAndHasNoChoices) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) {
    call->usage.cached_host_tokens = 4;
    call->Say({"a", "b"});
  };
  const auto events = Stream(kChatPath, ChatBody({{"stream_options", {{"include_usage", true}}}}));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_FALSE(events[2].contains("usage"));
  EXPECT_EQ(events[3]["choices"], json::array());
  EXPECT_EQ(events[3]["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[3]["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

TEST_F(StreamTest, ContinuousUsageIsOnEveryChunk) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"a", "b"}); };
  const auto events =
      Stream(kCompletionsPath, CompletionBody({{"stream_options", {{"continuous_usage_stats", true}}}}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[1]["usage"]["completion_tokens"], 2);
}

TEST_F(StreamTest, ContinuousUsageIsOnTheChunkThatOpensAnAnswerToo) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"a", "b"}); };
  const json each = {{"continuous_usage_stats", true}};
  for (const auto& events : {Stream(kChatPath, ChatBody({{"stream_options", each}})),
                             Stream(kCompletionsPath, CompletionBody({{"stream_options", each}, {"echo", true}}))}) {
    ASSERT_EQ(events.size(), 3u);
    for (const json& event : events) EXPECT_EQ(event.value("usage", json::object())["prompt_tokens"], 5) << event;
  }
}

TEST_F(StreamTest, SeveralAnswersEachOpenOnceAndKeepTheirIndex) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"x", "y"}); };
  const auto events = Stream(kChatPath, ChatBody({{"n", 2}}));
  std::map<int, std::string> texts;
  std::map<int, int> roles;
  for (const json& event : events) {
    const json& choice = event["choices"][0];
    texts[choice["index"]] += choice["delta"].value("content", "");
    roles[choice["index"]] += choice["delta"].contains("role");
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "xy"}, {1, "xy"}}));
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}}));
}

TEST_F(StreamTest, LogprobsOfAStreamCountOffsetsOn) {
  relay_.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"ab", "c"}); };
  const auto events = Stream(kCompletionsPath, CompletionBody({{"logprobs", 0}}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], json::array({0}));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"], json::array({2}));
}

// At which Python's splitlines, and so many a client, ends a line.
TEST_F(StreamTest, EndsOfLinesThatAreUnicodesAreEscaped) {
  const std::string text = "a\u2028b\u2029c\u0085d";
  relay_.on_generate = [&](std::shared_ptr<FakeCall> call) { call->Say({text}); };
  for (const auto& [path, body] : {std::pair(kChatPath, ChatBody()), {kCompletionsPath, CompletionBody()}}) {
    json streamed = body;
    streamed["stream"] = true;
    const std::string events = Post(path, streamed).body;
    for (const char* end : {"\u2028", "\u2029", "\u0085"}) EXPECT_EQ(events.find(end), std::string::npos) << events;
    const json choice = Events(events).back()["choices"][0];
    EXPECT_EQ(choice.contains("delta") ? choice["delta"]["content"] : choice["text"], text);
  }
}

TEST_F(StreamTest, TokensArriveAsTheyAreMade) {
  client_->SendRequest("POST", kCompletionsPath, CompletionBody({{"stream", true}}).dump());
  auto call = relay_.WaitForCall(0);
  ASSERT_TRUE(call);
  for (const char* text : {"one", "two", "three"}) {
    call->Emit({.index = 0, .text = text, .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}});
    if (std::string(text) == "one") {
      EXPECT_EQ(client_->ReadHead()->status, 200);
    }
    EXPECT_THAT(*client_->ReadChunk(), ::testing::HasSubstr(text));
  }
  call->End();
  EXPECT_EQ(client_->ReadChunk(), std::string(kDone));
  EXPECT_EQ(client_->ReadChunk(), "");
}

TEST_F(StreamTest, TokensWithoutTextMakeNoChunkOfTheirOwn) {
  client_->SendRequest("POST", kCompletionsPath, CompletionBody({{"stream", true}}).dump());
  auto call = relay_.WaitForCall(0);
  ASSERT_TRUE(call);
  call->Emit({.index = 0, .text = "", .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}});
  call->Emit({.index = 0, .text = "é", .token_ids = {2}, .logprobs = {}, .finish = {}, .usage = {}});
  call->End();
  EXPECT_EQ(Events(client_->ReadResponse()->body).size(), 1u);
}

}  // namespace
}  // namespace swiftcache::gateway::openai
