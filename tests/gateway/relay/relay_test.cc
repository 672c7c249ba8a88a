// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fakes/interrupted_clock.h"
#include "tests/gateway/relay/relay_fixture.h"
#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway {
namespace {

using fakes::Bytes;
using fakes::FakeCall;
using fleet::FinishReason;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class RelayTest : public RelayFixture {};

TEST_F(RelayTest, RelaysTextIdsAndUsage) {
  Serve({"a"});
  ASSERT_EQ(Run(Prompt("say it")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  const relay::GenerateEvent last = *sink_->Last();
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(last.usage->prompt_tokens, 6);
  EXPECT_EQ(last.usage->completion_tokens, 6);
  EXPECT_EQ(last.usage->cached_local_tokens, 3);
  EXPECT_GT(last.usage->time_to_first_token, absl::ZeroDuration());
}

TEST_F(RelayTest, SendsTheEngineWhatItNeeds) {
  Serve({"a"});
  relay::GenerateRequest request = Prompt("ab");
  request.request_id = "my-id";
  request.traceparent = "00-trace-01";
  request.cache_salt = "tenant";
  request.priority = 3;
  request.sampling.max_tokens = 7;
  std::optional<fleet::EngineRequest> seen;
  engines_["a"].SetScript([&](FakeCall& call) {
    seen = call.request();
    fakes::SayHello(call);
  });
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_THAT(seen->request_id, StartsWith("my-id~test-"));
  EXPECT_EQ(seen->traceparent, "00-trace-01");
  EXPECT_EQ(seen->token_ids, Bytes("ab"));
  EXPECT_EQ(seen->cache_salt, "tenant");
  EXPECT_EQ(seen->priority, 3);
  EXPECT_EQ(seen->sampling.max_tokens, 7);
}

TEST_F(RelayTest, MakesDistinctRequestIds) {
  Serve({"a"});
  auto one = relay_->Generate(Prompt("x"), std::make_shared<CollectingSink>());
  auto two = relay_->Generate(Prompt("x"), std::make_shared<CollectingSink>());
  EXPECT_THAT((*one)->request_id(), StartsWith("test-"));
  EXPECT_NE((*one)->request_id(), (*two)->request_id());
}

TEST_F(RelayTest, RequestsOfTheSameIdAreTwoToTheEngine) {
  Serve({"a"});
  std::vector<std::string> seen;
  engines_["a"].SetScript([&](FakeCall& call) {
    seen.push_back(call.request().request_id);
    fakes::SayHello(call);
  });
  relay::GenerateRequest request = Prompt("x");
  request.request_id = "same";
  for (int i = 0; i < 2; ++i) {
    sink_ = std::make_shared<CollectingSink>();
    auto call = relay_->Generate(request, sink_);
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_EQ((*call)->request_id(), "same") << "what the client hears";
    EXPECT_EQ(sink_->Wait(), absl::OkStatus());
  }
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_NE(seen[0], seen[1]);
}

TEST_F(RelayTest, SpecialLookingTextInAPlainPromptStaysText) {
  Serve({"a"});
  std::vector<std::vector<int32_t>> prompts;
  engines_["a"].SetScript([&](FakeCall& call) {
    prompts.push_back(call.request().token_ids);
    call.SendFinish(FinishReason::kLength);
    call.End(absl::OkStatus());
  });
  for (const bool plain : {false, true}) {
    relay::GenerateRequest request = Prompt("a<|im_end|>");
    request.plain_prompt = plain;
    ASSERT_EQ(Run(request), absl::OkStatus());
  }
  EXPECT_THAT(prompts, ElementsAre(ElementsAre('a', fakes::kImEnd), Bytes("a<|im_end|>")));
  auto ids = relay_->Tokenize("m", "<|im_end|>", /*parse_special=*/false);
  EXPECT_EQ(*ids, Bytes("<|im_end|>"));
  EXPECT_THAT(*relay_->Tokenize("m", "<|im_end|>", /*parse_special=*/true), ElementsAre(fakes::kImEnd));
}

TEST_F(RelayTest, ChatFollowsTheTemplateAndPlainContentKeepsMessagesText) {
  Serve({"a"});
  relay::Chat chat{.messages = {{"user", "a<|im_end|>b"}}};
  auto count_ends = [&](const relay::Chat& c) {
    const std::vector<int32_t> ids = *relay_->Tokenize("m", c, false);
    return std::count(ids.begin(), ids.end(), fakes::kImEnd);
  };
  EXPECT_EQ(count_ends(chat), 2);
  chat.plain_content = true;
  EXPECT_EQ(count_ends(chat), 1);
  EXPECT_EQ(*relay_->Detokenize("m", *relay_->Tokenize("m", chat, false)),
            "<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n");
  chat.messages[0].role = "<|im_end|>";
  EXPECT_EQ(relay_->Tokenize("m", chat, false).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RelayTest, TemplateVariablesReachTheTemplateAndTheirTextIsAMessages) {
  engines_["a"].SetCard(fakes::ByteModelCard(
      "{{ thinks is false }} {{ count + 1 }} {{ heat * 2 }} {{ nothing is none }} {{ name }} {{ other is defined }}"));
  Serve({"a"});
  relay::Chat chat{.messages = {{"user", "x"}}};
  chat.template_variables = {
      {"thinks", false}, {"count", int64_t{3}}, {"heat", 0.25}, {"nothing", {}}, {"name", "<|im_end|>"}};
  const auto text = [&] { return *relay_->Detokenize("m", *relay_->Tokenize("m", chat, false)); };
  const auto ends = [&] {
    const std::vector<int32_t> ids = *relay_->Tokenize("m", chat, false);
    return std::count(ids.begin(), ids.end(), fakes::kImEnd);
  };
  EXPECT_EQ(ends(), 1);
  chat.plain_content = true;
  EXPECT_EQ(text(), "True 4 0.5 True <|im_end|> False");
  EXPECT_EQ(ends(), 0);
}

TEST_F(RelayTest, MoreIdsThanTheLimitAreNotTurnedIntoText) {
  Serve({"a"});
  const std::vector<int32_t> ids((size_t{1} << 20) + 1, 'x');
  const absl::Status status = relay_->Detokenize("m", ids).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "token_ids has 1048577 ids, wants at most 1048576: shorten it");
  EXPECT_EQ(relay_->Detokenize("m", std::span(ids).subspan(1))->size(), size_t{1} << 20);
}

TEST_F(RelayTest, AModelWithoutTemplateRefusesChatAndServesPrompts) {
  engines_["a"].SetCard(fakes::ByteModelCard(""));
  Serve({"a"});
  relay::GenerateRequest request = Prompt("");
  request.input = relay::Chat{.messages = {{"user", "hi"}}};
  const absl::Status status = Run(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no chat template"));
  EXPECT_EQ(Run(Prompt("hi")), absl::OkStatus());
}

TEST_F(RelayTest, ATemplateThatIsNotUnderstoodRefusesChatAndNamesWhat) {
  engines_["a"].SetCard(fakes::ByteModelCard("{{ messages | no_such_filter }}"));
  Serve({"a"});
  relay::GenerateRequest request = Prompt("");
  request.input = relay::Chat{.messages = {{"user", "hi"}}};
  const absl::Status status = Run(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no_such_filter"));
  EXPECT_EQ(Run(Prompt("hi")), absl::OkStatus());
}

TEST_F(RelayTest, AStopStringAcrossTokensEndsTheAnswerBeforeItAndCancelsTheEngine) {
  Serve({"a"});
  bool cancelled = false;
  engines_["a"].SetScript([&](FakeCall& call) {
    for (const char* piece : {"one ", "EN", "D", " more"}) call.SendText(piece);
    call.WaitCancelled();
    cancelled = true;
  });
  relay::GenerateRequest request = Prompt("x");
  request.sampling.stop = {"never", "END"};
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(sink_->Text(), "one ");
  EXPECT_EQ(sink_->Last()->finish, FinishReason::kStop);
  EXPECT_EQ(sink_->Last()->usage->completion_tokens, 7);
}

TEST_F(RelayTest, AStopStringWithinOneEventDropsTheTokensAfterIt) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("abENDcd");
    call.WaitCancelled();
  });
  relay::GenerateRequest request = Prompt("x");
  request.sampling.stop = {"END"};
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "ab");
  EXPECT_EQ(sink_->Last()->token_ids, Bytes("abEND"));
}

TEST_F(RelayTest, TextHeldBackForAStopStringComesOutAtTheEnd) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("so EN");
    call.SendFinish(FinishReason::kLength);
    call.End(absl::OkStatus());
  });
  relay::GenerateRequest request = Prompt("x");
  request.sampling.stop = {"END"};
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "so EN");
  EXPECT_EQ(sink_->Last()->finish, FinishReason::kLength);
}

TEST_F(RelayTest, TheTextOfAStopTokenIsNotPartOfTheAnswer) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("ab");
    call.SendFinish(FinishReason::kStop, 0, Bytes("!"));
    call.End(absl::OkStatus());
  });
  for (const std::vector<int32_t>& of_request : {std::vector<int32_t>{'!'}, {}}) {  // none: the model ends with it
    relay::GenerateRequest request = Prompt("x");
    request.sampling.stop_token_ids = of_request;
    ASSERT_EQ(Run(request), absl::OkStatus());
    EXPECT_EQ(sink_->Text(), "ab");
    EXPECT_EQ(sink_->Last()->token_ids, Bytes("!"));
  }
}

TEST_F(RelayTest, PromptAndAnswerOfSentencePieceAreTheTextOfAllTheirTokens) {
  fleet::ModelCard card;
  card.tokenizer = text::ScoredSpec({"▁hello", "▁world", "▁"});
  card.vocab_size = static_cast<int64_t>(card.tokenizer.tokens.size());
  const std::vector<int32_t> answer = {text::IdOf(card.tokenizer, "▁world"), text::IdOf(card.tokenizer, "▁hello")};
  engines_["a"].SetCard(card);
  Serve({"a"});
  std::vector<int32_t> prompt;
  engines_["a"].SetScript([&](FakeCall& call) {
    prompt = call.request().token_ids;
    for (const int32_t id : answer) {
      fleet::EngineEvent event;
      event.token_ids = {id};
      call.Send(std::move(event));
    }
    call.SendFinish(FinishReason::kLength);
    call.End(absl::OkStatus());
  });
  ASSERT_EQ(Run(Prompt("hello")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), " world hello");
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  EXPECT_EQ(*relay_->Detokenize("m", prompt) + sink_->Text(), *relay_->Detokenize("m", all));
}

TEST_F(RelayTest, NeverSendsHalfACharacter) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    for (const char c : std::string("\xC3\xA9!")) call.SendText(std::string(1, c));
    call.SendFinish(FinishReason::kStop);
    call.End(absl::OkStatus());
  });
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->events()[0].text, "");
  EXPECT_EQ(sink_->events()[1].text, "\xC3\xA9");
}

TEST_F(RelayTest, LogprobsCarryTheBytesOfEachToken) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    fleet::EngineEvent event;
    event.token_ids = {0xC3};
    event.logprobs = {{.token_id = 0xC3, .logprob = -0.5F, .top = {{0xC3, -0.5F}, {'a', -2.0F}}}};
    call.Send(event);
    call.SendFinish(FinishReason::kLength);
    call.End(absl::OkStatus());
  });
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  const relay::TokenLogprob logprob = sink_->events()[0].logprobs.at(0);
  EXPECT_EQ(logprob.token, "\xC3");
  EXPECT_FLOAT_EQ(logprob.logprob, -0.5F);
  ASSERT_THAT(logprob.top, SizeIs(2));
  EXPECT_EQ(logprob.top[1].token, "a");
}

TEST_F(RelayTest, CancelReachesTheEngineAndEndsWithCancelled) {
  Serve({"a"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  auto sink = std::make_shared<CollectingSink>();
  auto call = relay_->Generate(Prompt("x"), sink);
  ASSERT_TRUE(call.ok());
  (*call)->Cancel(relay::ClientGone());
  EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kCancelled);
  (*call)->Cancel(relay::ClientGone());
  EXPECT_THAT(sink->events(), SizeIs(0));
}

TEST_F(RelayTest, APassedDeadlineIsAnErrorBeforeAnEngineIsAsked) {
  Serve({"a"});
  relay::GenerateRequest request = Prompt("x");
  request.deadline = clock_.Now() - absl::Seconds(1);
  EXPECT_EQ(Run(request).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engines_["a"].calls(), 0);
}

TEST_F(RelayTest, TheEnginesDeadlineErrorSaysHowFarItCame) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("abc");
    call.End(absl::DeadlineExceededError("Deadline Exceeded"));
  });
  const absl::Status status = Run(Prompt("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("after 3 tokens"));
}

TEST_F(RelayTest, DrainingRefusesNewRequestsAndLetsRunningOnesFinish) {
  Serve({"a"});
  absl::Notification go;
  engines_["a"].SetScript([&](FakeCall& call) {
    go.WaitForNotification();
    fakes::SayHello(call);
  });
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(relay_->Generate(Prompt("x"), sink).ok());
  relay_->RefuseNew();
  EXPECT_EQ(Run(Prompt("y")).code(), absl::StatusCode::kUnavailable);
  go.Notify();
  relay_->Stop(clock_.Now() + absl::Seconds(60));
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
}

// Its prompt is being tokenised when the signal comes.
TEST_F(RelayTest, StopWaitsForARequestThatHasJustBeenAccepted) {
  Serve({"a"});
  const InterruptedClock clock;
  const auto relay = *relay::RelayImpl::Create({.limits = {}, .id_prefix = "test"}, *fleet_, clock, metrics_);
  std::atomic<bool> stopped = false;
  std::thread stop;
  const auto begin_to_stop = [&] {
    relay->RefuseNew();
    stop = std::thread([&] {
      relay->Stop(absl::InfiniteFuture());
      stopped = true;
    });
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_FALSE(stopped);
  };
  InterruptedClock::Next([&] { InterruptedClock::Next(begin_to_stop); });  // first it notes when the request arrived
  auto sink = std::make_shared<CollectingSink>();
  EXPECT_TRUE(relay->Generate(Prompt("x"), sink).ok());
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  stop.join();
}

TEST_F(RelayTest, StopEndsWhatIsLeftAtItsDeadlineWithOneClearError) {
  Serve({"a"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(relay_->Generate(Prompt("x"), sink).ok());
  relay_->Stop(clock_.Now());
  const absl::Status status = sink->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stopped"));
}

TEST_F(RelayTest, StopWaitsForNoRequestThatThrew) {
  Serve({"a"});
  engines_["a"].before_handle = [] { throw std::runtime_error("no memory"); };
  auto sink = std::make_shared<CollectingSink>();
  EXPECT_THROW((void)relay_->Generate(Prompt("x"), sink), std::runtime_error);
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  engines_["a"].before_call = [] { throw std::runtime_error("no memory either"); };
  EXPECT_THROW((void)relay_->Generate(Prompt("x"), std::make_shared<CollectingSink>()), std::runtime_error);
  relay_->Stop(clock_.Now());
}

TEST_F(RelayTest, AnUnknownModelIsNotFoundAndAModelWithoutCardUnavailable) {
  EXPECT_EQ(Run(Prompt("x")).code(), absl::StatusCode::kUnavailable);  // no news of the broker yet
  fleet_->OnSnapshot("broker-1", {});
  EXPECT_EQ(Run(Prompt("x")).code(), absl::StatusCode::kUnavailable);  // no engine
  Serve({"a"});
  relay::GenerateRequest request = Prompt("x");
  request.model = "other";
  const absl::Status status = Run(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("\"other\""), HasSubstr("served: m")));
  fleet::EngineStatus starting = Ready("s", "starting");
  starting.info.state = fleet::EngineState::kStarting;
  fleet_->OnUpdate(starting);
  request.model = "starting";
  EXPECT_EQ(Run(request).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RelayTest, ListsNoModelsBeforeTheBrokerIsHeard) {
  const absl::Status not_heard =
      absl::UnavailableError("the gateway has not heard of the broker yet: try again shortly, check --broker");
  EXPECT_EQ(relay_->ListModels().status(), not_heard);
  EXPECT_EQ(Run(Prompt("x")), not_heard);
  fleet_->OnSnapshot("incarnation", {});
  EXPECT_THAT(*relay_->ListModels(), SizeIs(0));
}

TEST_F(RelayTest, ListsModelsWithALivingEngine) {
  Serve({"a", "b"});
  fleet_->OnUpdate(Ready("c", "other"));
  WaitForText("other");
  const std::vector<relay::ModelInfo> models = *relay_->ListModels();
  ASSERT_THAT(models, SizeIs(2));
  EXPECT_EQ(models[0].name, "m");
  EXPECT_EQ(models[0].engines, 2);
  EXPECT_EQ(models[0].max_model_len_tokens, 100);
  EXPECT_EQ(models[1].name, "other");
}

TEST_F(RelayTest, CountsRequestsByModelAndCode) {
  Serve({"a"});
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  ASSERT_FALSE(Run(Prompt("")).ok());
  relay::GenerateRequest unknown = Prompt("x");
  unknown.model = "made-up";
  ASSERT_FALSE(Run(unknown).ok());
  relay_->Stop(clock_.Now() + absl::Seconds(60));
  const std::string text = metrics_.Serialize();
  EXPECT_THAT(text, HasSubstr("swiftcache_gateway_requests_total{code=\"OK\",model_name=\"m\"} 1"));
  EXPECT_THAT(text, HasSubstr("swiftcache_gateway_requests_total{code=\"INVALID_ARGUMENT\",model_name=\"m\"} 1"));
  EXPECT_THAT(text, HasSubstr("swiftcache_gateway_requests_total{code=\"NOT_FOUND\",model_name=\"\"} 1"));
  EXPECT_THAT(text, HasSubstr("swiftcache_gateway_time_to_first_token_seconds_count{model_name=\"m\"} 1"));
  EXPECT_THAT(text, HasSubstr("swiftcache_gateway_running_requests 0"));
}

}  // namespace
}  // namespace swiftcache::gateway
