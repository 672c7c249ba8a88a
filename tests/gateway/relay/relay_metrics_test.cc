// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/relay_metrics.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::FakeCall;
using ::testing::HasSubstr;
using ::testing::Not;

class RelayMetricsTest : public RelayFixture {
 protected:
  std::string Scrape() { return metrics_.Serialize(); }
  int RefusalsOf(const std::string& scraped) {
    int sum = 0;
    for (const absl::string_view line : absl::StrSplit(scraped, '\n')) {
      int count = 0;
      if (!absl::StartsWith(line, "swiftcache_gateway_refusals_total{")) continue;
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(line.rfind(' ') + 1), &count)) << line;
      sum += count;
    }
    return sum;
  }
  static int SeriesOf(const std::string& scraped, const std::string& name) {
    const std::vector<std::string> lines = absl::StrSplit(scraped, '\n');
    return std::ranges::count_if(lines, [&](const auto& line) { return absl::StartsWith(line, name + "{"); });
  }
  static std::string Refusals(const std::string& model, const std::string& reason, int count) {
    return absl::StrCat("swiftcache_gateway_refusals_total{model_name=\"", model, "\",reason=\"", reason, "\"} ", count,
                        "\n");
  }
};

TEST_F(RelayMetricsTest, RequestsThatNoEngineSawAreCountedByReason) {
  ASSERT_FALSE(Run(Prompt("x")).ok());  // the broker has not been heard of
  EXPECT_THAT(Scrape(), HasSubstr(Refusals("", "no_engine", 1)));
  Serve({"a"});
  ASSERT_FALSE(Run(Prompt("")).ok());
  ASSERT_FALSE(Run(Prompt(std::string(100, 'x'))).ok());
  relay::GenerateRequest unknown = Prompt("x"), late = Prompt("x");
  unknown.model = "made-up";
  ASSERT_FALSE(Run(unknown).ok());
  late.deadline = clock_.Now() - absl::Seconds(1);
  ASSERT_FALSE(Run(late).ok());
  relay_->Refused(Prompt("x"), absl::InvalidArgumentError("said by a door"));
  relay_->Refused(Prompt("x"), absl::ResourceExhaustedError("said by a door"));
  fleet::EngineStatus leaving = Ready("a");
  leaving.info.state = fleet::EngineState::kDraining;
  fleet_->OnUpdate(leaving);
  ASSERT_FALSE(Run(Prompt("x")).ok());
  relay_->RefuseNew();
  ASSERT_FALSE(Run(Prompt("x")).ok());
  const std::string scraped = Scrape();
  EXPECT_THAT(scraped, HasSubstr(Refusals("m", "invalid", 2)));
  EXPECT_THAT(scraped, HasSubstr(Refusals("m", "too_long", 1)));
  EXPECT_THAT(scraped, HasSubstr(Refusals("", "unknown_model", 1)));
  EXPECT_THAT(scraped, HasSubstr(Refusals("m", "deadline", 1)));
  EXPECT_THAT(scraped, HasSubstr(Refusals("m", "no_engine", 1)));
  EXPECT_THAT(scraped, HasSubstr(Refusals("m", "draining", 1)));
  EXPECT_THAT(scraped, HasSubstr(Refusals("m", "no_room", 1)));
  EXPECT_THAT(scraped, Not(HasSubstr("made-up")));
  EXPECT_THAT(scraped, Not(HasSubstr("swiftcache_gateway_engine_requests_total")));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_running_requests 0"));
}

TEST_F(RelayMetricsTest, ARequestThatAnEngineRefusesIsNoRefusalOfTheGateway) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) { call.End(absl::ResourceExhaustedError("queue full")); });
  ASSERT_FALSE(Run(Prompt("x")).ok());
  EXPECT_EQ(RefusalsOf(Scrape()), 0);
}

TEST_F(RelayMetricsTest, WhatHasNotHappenedYetIsZeroForEveryModelAndEngine) {
  Serve({"a", "b"});
  relay_->UpdateMetrics();
  const std::string scraped = Scrape();
  for (const char* model : {"", "m"}) {
    for (const char* reason :
         {"invalid", "unknown_model", "too_long", "no_engine", "deadline", "draining", "no_room"}) {
      EXPECT_THAT(scraped, HasSubstr(Refusals(model, reason, 0)));
    }
    for (const char* code : {"OK", "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "OUT_OF_RANGE",
                             "RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL", "UNKNOWN", "DATA_LOSS"}) {
      EXPECT_THAT(scraped, HasSubstr(absl::StrCat("swiftcache_gateway_requests_total{code=\"", code, "\",model_name=\"",
                                                  model, "\"} 0\n")));
    }
  }
  for (const char* engine : {"a", "b"}) {
    EXPECT_THAT(scraped, HasSubstr(absl::StrCat("swiftcache_gateway_engine_requests_total{engine=\"", engine,
                                                "\",model_name=\"m\"} 0\n")));
  }
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_time_to_first_token_seconds_count{model_name=\"m\"} 0\n"));
  EXPECT_THAT(scraped, Not(HasSubstr("swiftcache_gateway_time_to_first_token_seconds_count{model_name=\"\"}")));
}

TEST_F(RelayMetricsTest, AModelHasAsManyEnginesAsAreReadyAndNoneOnceTheyAreGone) {
  const auto expect_engines = [this](int engines) {
    relay_->UpdateMetrics();
    EXPECT_THAT(Scrape(),
                HasSubstr(absl::StrCat("swiftcache_gateway_model_engines{model_name=\"m\"} ", engines, "\n")));
  };
  Serve({"a", "b"});
  expect_engines(2);
  fleet::EngineStatus leaving = Ready("a");
  leaving.info.state = fleet::EngineState::kDraining;
  fleet_->OnUpdate(leaving);
  expect_engines(1);
  for (const char* engine : {"a", "b"}) fleet_->OnRemoved(engine, /*died=*/false);
  expect_engines(0);
  fleet_->OnUpdate(Ready("b"));
  expect_engines(1);
}

TEST_F(RelayMetricsTest, AModelWithoutEnginesIsForgottenAfterADay) {
  Metrics metrics;
  relay::RelayMetrics relay_metrics(metrics);
  const absl::Time last = absl::FromUnixSeconds(1000);
  relay_metrics.ReadyEngines({{"m", 1}}, last);
  EXPECT_THAT(metrics.Serialize(), HasSubstr("swiftcache_gateway_model_engines{model_name=\"m\"} 1\n"));
  relay_metrics.ReadyEngines({}, last + absl::Hours(24));
  EXPECT_THAT(metrics.Serialize(), HasSubstr("swiftcache_gateway_model_engines{model_name=\"m\"} 0\n"));
  relay_metrics.ReadyEngines({}, last + absl::Hours(25));
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("swiftcache_gateway_model_engines{")));
}

// Who can register engines could make new ones, of new models, again and again.
TEST_F(RelayMetricsTest, OfModelsAndEnginesThatAreGoneTheLastAreRemembered) {
  Metrics metrics;
  relay::RelayMetrics relay_metrics(metrics);
  constexpr int kGone = relay::Remembered<std::string, int>::kMaxUnseen;
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i <= kGone + 100; ++i) {
    const std::string model = absl::StrCat("model-", i);
    now += absl::Seconds(1);
    relay_metrics.Serves(model, "engine", now);
    relay_metrics.Serves("same", absl::StrCat("engine-", i), now);
    relay_metrics.Sent(model, "engine");
    relay_metrics.Ended(model, absl::OkStatus(), absl::Seconds(1));
    relay_metrics.ReadyEngines({{model, 1}, {"same", 1}}, now);
  }
  const std::string scraped = metrics.Serialize();
  EXPECT_EQ(SeriesOf(scraped, "swiftcache_gateway_model_engines"), kGone + 2);
  EXPECT_EQ(SeriesOf(scraped, "swiftcache_gateway_e2e_request_latency_seconds_count"), kGone + 2);
  EXPECT_EQ(SeriesOf(scraped, "swiftcache_gateway_engine_requests_total"), kGone + 2);
  EXPECT_THAT(scraped, Not(HasSubstr("\"model-99\"")));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_requests_total{code=\"OK\",model_name=\"model-300\"} 1\n"));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_model_engines{model_name=\"model-300\"} 0\n"));
  relay_metrics.Serves("model-99", "engine", now);
  relay_metrics.Sent("model-300", "engine");
  const std::string again = metrics.Serialize();
  EXPECT_THAT(again, HasSubstr("engine_requests_total{engine=\"engine\",model_name=\"model-99\"} 0\n"));
  EXPECT_THAT(again, HasSubstr("engine_requests_total{engine=\"engine\",model_name=\"model-300\"} 2\n"));
}

TEST(RememberedTest, ThereAreNotMoreThanTheMostThoughNobodyLooks) {
  relay::Remembered<int, int> remembered;
  constexpr int kMost = relay::Remembered<int, int>::kMost;
  const std::shared_ptr<int> in_use = remembered.Get(0, [] { return std::make_shared<int>(7); });
  for (int i = 1; i <= kMost; ++i) remembered.Get(i, [] { return std::make_shared<int>(); });
  int count = 0;
  remembered.ForEach([&](int, int) { ++count; });
  EXPECT_EQ(count, kMost);
  EXPECT_EQ(*in_use, 7);
  EXPECT_EQ(*remembered.Get(0, [] { return std::make_shared<int>(8); }), 8) << "it was forgotten";
}

TEST_F(RelayMetricsTest, EveryAttemptIsCountedWithItsEngine) {
  Serve({"a", "b"});
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  engines_["a"].SetScript(fakes::DieAfter(0));
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  const std::string scraped = Scrape();
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_engine_requests_total{engine=\"a\",model_name=\"m\"} 2\n"));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_engine_requests_total{engine=\"b\",model_name=\"m\"} 1\n"));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_retries_total{model_name=\"m\"} 1\n"));
}

TEST_F(RelayMetricsTest, WhatFailsIsCountedWithTheEngineWhereItDidThoughAnotherAnswers) {
  const auto failures = [](const std::string& engine, const std::string& code, int count) {
    return absl::StrCat("swiftcache_gateway_engine_failures_total{code=\"", code, "\",engine=\"", engine,
                        "\",model_name=\"m\"} ", count, "\n");
  };
  Serve({"a", "b"});
  relay_->UpdateMetrics();
  for (const char* engine : {"a", "b"}) EXPECT_THAT(Scrape(), HasSubstr(failures(engine, "UNAVAILABLE", 0)));
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("x");
    call.WaitCancelled();
  });
  auto sink = std::make_shared<CollectingSink>();
  auto call = relay_->Generate(Prompt("y"), sink);
  ASSERT_TRUE(call.ok());
  sink->WaitEvents(1);
  (*call)->Cancel(relay::ClientGone());
  EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kCancelled);
  engines_["a"].SetScript(fakes::DieAfter(0));
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  engines_["b"].SetScript(fakes::DieAfter(1));  // now it is asked before the other
  ASSERT_FALSE(Run(Prompt("x")).ok());
  engines_["a"].SetScript([](FakeCall& call) { call.End(absl::InternalError("a step failed")); });
  ASSERT_FALSE(Run(Prompt("x")).ok());
  const std::string scraped = Scrape();
  EXPECT_THAT(scraped, HasSubstr(failures("a", "UNAVAILABLE", 1)));
  EXPECT_THAT(scraped, HasSubstr(failures("a", "INTERNAL", 1)));
  EXPECT_THAT(scraped, HasSubstr(failures("b", "UNAVAILABLE", 1)));
  EXPECT_THAT(scraped, Not(HasSubstr("swiftcache_gateway_engine_failures_total{code=\"CANCELLED\"")));
}

TEST_F(RelayMetricsTest, TimeAtTheDoorCounts) {
  Serve({"a"});
  relay::GenerateRequest request = Prompt("x");
  request.arrived = clock_.Now() - absl::Seconds(100);
  ASSERT_EQ(Run(request), absl::OkStatus());
  const std::string scraped = Scrape();
  for (const char* metric : {"queue_time_seconds", "time_to_first_token_seconds", "e2e_request_latency_seconds"}) {
    EXPECT_THAT(scraped, HasSubstr(absl::StrCat("swiftcache_gateway_", metric, "_sum{model_name=\"m\"} 10")));
  }
}

TEST_F(RelayMetricsTest, LatencyIsOfRequestsThatWereAnswered) {
  Serve({"a"});
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  engines_["a"].SetScript([](FakeCall& call) { call.End(absl::ResourceExhaustedError("queue full")); });
  ASSERT_FALSE(Run(Prompt("x")).ok());  // at once, which would look like a quick answer
  engines_["a"].SetScript(fakes::DieAfter(1));
  ASSERT_FALSE(Run(Prompt("x")).ok());
  relay::GenerateRequest late = Prompt("x");
  late.deadline = clock_.Now() - absl::Seconds(1);
  ASSERT_FALSE(Run(late).ok());
  EXPECT_THAT(Scrape(), HasSubstr("swiftcache_gateway_e2e_request_latency_seconds_count{model_name=\"m\"} 1\n"));
}

TEST_F(RelayMetricsTest, TokensOfAPromptAreCountedOnceAndThoseOfAnswersAsTheyLeave) {
  Serve({"a", "b"});
  engines_["a"].SetScript(fakes::DieAfter(0));
  ASSERT_EQ(Run(Prompt("seven b")), absl::OkStatus());  // by the second engine: hello, and the end's token
  std::string scraped = Scrape();
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_prompt_tokens_total{model_name=\"m\"} 7\n"));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_generation_tokens_total{model_name=\"m\"} 6\n"));
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_queue_time_seconds_count{model_name=\"m\"} 1\n"));
  engines_["b"].SetScript([](FakeCall& call) {
    call.SendText("xx");
    call.WaitCancelled();
  });
  auto sink = std::make_shared<CollectingSink>();
  auto call = relay_->Generate(Prompt("y"), sink);
  ASSERT_TRUE(call.ok());
  sink->WaitEvents(1);
  scraped = Scrape();  // the request is still under way
  EXPECT_THAT(scraped, HasSubstr("swiftcache_gateway_generation_tokens_total{model_name=\"m\"} 8\n"));
  (*call)->Cancel(relay::ClientGone());
  EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(RelayMetricsTest, WhatIsTextIsTimedAndTokenIdsAreNot) {
  Serve({"a"});
  relay::GenerateRequest ids = Prompt(""), chat = Prompt("");
  ids.input = std::vector<int32_t>{1, 2};
  ASSERT_EQ(Run(ids), absl::OkStatus());
  EXPECT_THAT(Scrape(), HasSubstr("swiftcache_gateway_tokenize_seconds_count{model_name=\"m\"} 0\n"));
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  chat.input = relay::Chat{.messages = {{"user", "hi"}}};
  ASSERT_EQ(Run(chat), absl::OkStatus());
  ASSERT_FALSE(Run(Prompt(std::string(100, 'x'))).ok());  // too long: it took its time all the same
  EXPECT_THAT(Scrape(), HasSubstr("swiftcache_gateway_tokenize_seconds_count{model_name=\"m\"} 3\n"));
}

}  // namespace
}  // namespace swiftcache::gateway
