// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <string>

#include "absl/strings/cord.h"
#include "absl/synchronization/notification.h"
#include "tests/fakes/fake_clock.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::DieAfter;
using fakes::FakeCall;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RelayRetryTest : public RelayFixture {};

TEST_F(RelayRetryTest, AnEngineThatDiesBeforeTheFirstTokenIsReplacedUnseen) {
  Serve({"a", "b"});
  engines_["a"].SetScript(DieAfter(0));
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  EXPECT_EQ(engines_["a"].calls(), 1);
  EXPECT_EQ(engines_["b"].calls(), 1);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_gateway_retries_total{model_name=\"m\"} 1"));
}

// The engine that seems gone may still hold the first attempt when its second comes by another way.
TEST_F(RelayRetryTest, EachAttemptHasAnIdOfItsOwn) {
  Serve({"a", "b"});
  std::vector<std::string> seen;
  engines_["a"].SetScript([&](FakeCall& call) {
    seen.push_back(call.request().request_id);
    call.End(absl::UnavailableError("gone"));
  });
  engines_["b"].SetScript([&](FakeCall& call) {
    seen.push_back(call.request().request_id);
    fakes::SayHello(call);
  });
  relay::GenerateRequest request = Prompt("x");
  request.request_id = "mine";
  ASSERT_EQ(Run(request), absl::OkStatus());
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_THAT(seen, ::testing::Each(::testing::StartsWith("mine~test-")));
  EXPECT_NE(seen[0], seen[1]);
}

TEST_F(RelayRetryTest, AnEngineThatDiesAfterATokenIsOneClearError) {
  Serve({"a", "b"});
  engines_["a"].SetScript(DieAfter(2));
  const absl::Status status = Run(Prompt("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("engine a was lost after 2 tokens"), HasSubstr("Socket closed")));
  EXPECT_EQ(sink_->Text(), "xx");
  EXPECT_EQ(engines_["b"].calls(), 0);
}

TEST_F(RelayRetryTest, WhenEveryEngineFailsTheErrorNamesThem) {
  Serve({"a", "b"});
  engines_["a"].SetScript(DieAfter(0));
  engines_["b"].SetScript(DieAfter(0));
  const absl::Status status = Run(Prompt("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tried and failed: a, b"), HasSubstr("Socket closed")));
}

TEST_F(RelayRetryTest, WhatEnginesFailAtTakesNoMoreThanThreeOfThem) {
  const std::vector<std::string> all = {"a", "b", "c", "d", "e"};
  Serve({"a", "b", "c", "d", "e"});
  for (const std::string& name : all) engines_[name].SetScript(DieAfter(0));
  const absl::Status status = Run(Prompt("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model m: it failed at 3 engines"));
  int64_t calls = 0;
  for (const std::string& name : all) calls += engines_[name].calls();
  EXPECT_EQ(calls, 3);
}

TEST_F(RelayRetryTest, WhereOneRequestFailedTheNextIsSentOnlyIfNoOtherEngineIsLeft) {
  Serve({"a", "b", "c", "d", "e"});
  for (const char* name : {"d", "e"}) {
    fleet::EngineStatus loaded = Ready(name);
    loaded.load.running_requests = 9;
    fleet_->OnUpdate(loaded);
  }
  for (const char* name : {"a", "b", "c"}) engines_[name].SetScript(DieAfter(0));  // the broker does not know yet
  EXPECT_EQ(Run(Prompt("x")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(engines_[name].calls(), 1) << name;
}

// It ends each request in milliseconds, so its load stays the least. An OK without an answer is no better.
TEST_F(RelayRetryTest, AnEngineThatFailsEveryRequestDoesNotDrawThemAll) {
  Serve({"a", "b"});
  fleet::EngineStatus loaded = Ready("b");
  loaded.load.running_requests = 9;
  fleet_->OnUpdate(loaded);
  for (const absl::Status& status : {absl::InternalError("a step failed"), absl::OkStatus()}) {
    engines_["a"].SetScript([status](FakeCall& call) { call.End(status); });
    EXPECT_EQ(Run(Prompt("x")).code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  EXPECT_EQ(engines_["a"].calls(), 2);
}

TEST_F(RelayRetryTest, WhoseDeadlineHasPassedIsNotTriedAgainNorCountedAsIfItWere) {
  Serve({"a", "b"});
  FakeClock clock;
  Metrics metrics;
  relay_ = *relay::RelayImpl::Create({.limits = {}, .id_prefix = "test"}, *fleet_, clock, metrics);
  engines_["a"].SetScript([&clock](FakeCall& call) {
    clock.Advance(absl::Minutes(1));
    call.End(absl::UnavailableError("draining"));
  });
  relay::GenerateRequest request = Prompt("x");
  request.deadline = clock.Now() + absl::Seconds(1);
  EXPECT_EQ(Run(request).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engines_["b"].calls(), 0);
  EXPECT_THAT(metrics.Serialize(), HasSubstr("swiftcache_gateway_retries_total{model_name=\"m\"} 0"));
  relay_.reset();
}

TEST_F(RelayRetryTest, AnEngineThatCameMeanwhileTakesTheRetry) {
  Serve({"a"});
  engines_["a"].SetScript([this](FakeCall& call) {
    fleet_->OnUpdate(Ready("z"));
    call.End(absl::UnavailableError("draining"));
  });
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(engines_["z"].calls(), 1);
}

TEST_F(RelayRetryTest, AnEngineThatHasTakenADeadOnesNameIsAnother) {
  Serve({"a"});
  engines_["a"].SetScript([this](FakeCall& call) {
    if (engines_["a"].calls() > 1) return fakes::SayHello(call);
    fleet::EngineStatus next = Ready("a");
    next.info.instance_id = "a-2";
    fleet_->OnUpdate(next);
    call.End(absl::UnavailableError("Socket closed"));
  });
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  EXPECT_EQ(engines_["a"].calls(), 2);
}

TEST_F(RelayRetryTest, OtherErrorsAreTheClientsToSee) {
  Serve({"a", "b"});
  for (const absl::Status& error : {absl::InvalidArgumentError("bad"), absl::InternalError("bug")}) {
    engines_["a"].SetScript([&](FakeCall& call) { call.End(error); });
    EXPECT_EQ(Run(Prompt("x")), error);
  }
  EXPECT_EQ(engines_["b"].calls(), 0);
}

absl::Status MakeFull(const std::string& engine) {
  absl::Status status = absl::ResourceExhaustedError(engine + ": 8 requests wait already");
  status.SetPayload("type.googleapis.com/google.rpc.RetryInfo", absl::Cord("in a second"));
  return status;
}

// As the engine's door says it, with a payload that must reach the client. Kept for ever: ThreadSanitizer does not see
// Abseil's reference counts, by which the last of several threads would free it.
const absl::Status& Full(const std::string& engine) {
  static const auto& statuses =
      *new std::map<std::string, absl::Status>{{"a", MakeFull("a")}, {"b", MakeFull("b")}, {"c", MakeFull("c")}};
  return statuses.at(engine);
}

TEST_F(RelayRetryTest, AFullEngineIsNoAnswerWhereAnotherHasRoom) {
  Serve({"a", "b"});
  engines_["a"].SetScript([](FakeCall& call) { call.End(Full("a")); });
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  EXPECT_EQ(engines_["a"].calls(), 1);
  EXPECT_EQ(engines_["b"].calls(), 1);
}

TEST_F(RelayRetryTest, WhenEveryEngineIsFullTheClientHearsWhenToComeBack) {
  Serve({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) {
    engines_[name].SetScript([name](FakeCall& call) { call.End(Full(name)); });
  }
  EXPECT_EQ(Run(Prompt("x")), Full("c"));
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(engines_[name].calls(), 1) << name;
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_gateway_retries_total{model_name=\"m\"} 2"));
}

TEST_F(RelayRetryTest, AFullEngineIsHeardOfEvenIfTheNextIsLost) {
  Serve({"a", "b"});
  engines_["a"].SetScript([](FakeCall& call) { call.End(Full("a")); });
  engines_["b"].SetScript(DieAfter(0));
  EXPECT_EQ(Run(Prompt("x")), Full("a"));
}

// Kept for ever, as those of Full.
const absl::Status& TooLong(const std::string& engine) {
  static const auto& statuses = *new std::map<std::string, absl::Status>{{"a", absl::OutOfRangeError("a holds 8")},
                                                                         {"b", absl::OutOfRangeError("b holds 7")},
                                                                         {"c", absl::OutOfRangeError("c holds 6")},
                                                                         {"d", absl::OutOfRangeError("d holds 5")}};
  return statuses.at(engine);
}

std::function<void(FakeCall&)> HasNoMemory(const std::string& engine) {
  return [engine](FakeCall& call) { call.End(TooLong(engine)); };
}

TEST_F(RelayRetryTest, WhatOneEngineHasNoMemoryForAnotherMayHold) {
  Serve({"a", "b"});
  engines_["a"].SetScript(HasNoMemory("a"));
  ASSERT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  EXPECT_EQ(engines_["a"].calls(), 1);
  EXPECT_EQ(engines_["b"].calls(), 1);
}

TEST_F(RelayRetryTest, WhatNoEngineHasMemoryForEndsAsTheFirstSaidAtThreeOfThem) {
  Serve({"a"});
  engines_["a"].SetScript(HasNoMemory("a"));
  EXPECT_EQ(Run(Prompt("x")), TooLong("a")) << "there is no other";
  Serve({"a", "b", "c", "d"});
  for (const char* name : {"b", "c", "d"}) engines_[name].SetScript(HasNoMemory(name));
  EXPECT_EQ(Run(Prompt("x")), TooLong("a"));
  EXPECT_EQ(engines_["c"].calls(), 1);
  EXPECT_EQ(engines_["d"].calls(), 0) << "each may have waited for memory";
}

TEST_F(RelayRetryTest, OfEnginesThatFailTheFullOneSaysMostAndTheLostOneLeast) {
  Serve({"a", "b", "c"});
  engines_["a"].SetScript(HasNoMemory("a"));
  engines_["b"].SetScript(DieAfter(0));
  engines_["c"].SetScript(DieAfter(0));
  EXPECT_EQ(Run(Prompt("x")), TooLong("a"));
  engines_["c"].SetScript([](FakeCall& call) { call.End(Full("c")); });
  EXPECT_EQ(Run(Prompt("x")), Full("c"));
}

TEST_F(RelayRetryTest, AnEngineThatCancelsByItselfIsUnavailableAndReplaced) {
  Serve({"a", "b"});
  engines_["a"].SetScript([](FakeCall& call) { call.End(absl::CancelledError("draining")); });
  EXPECT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(engines_["b"].calls(), 1);
}

TEST_F(RelayRetryTest, AnAnswerThatAnEngineCutsOffIsUnavailableAfterItsTokens) {
  Serve({"a", "b"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("x");
    call.SendFinish(fleet::FinishReason::kCancelled, 0, fakes::Bytes("y"));
    call.End(absl::OkStatus());
  });
  const absl::Status status = Run(Prompt("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("after 2 tokens"), HasSubstr("before the answer was complete")));
  EXPECT_EQ(sink_->Text(), "xy");
  EXPECT_FALSE(sink_->Last()->finish.has_value());
  EXPECT_EQ(engines_["b"].calls(), 0);
}

TEST_F(RelayRetryTest, AnAnswerCutOffBeforeItsFirstTokenIsTriedElsewhere) {
  Serve({"a", "b"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendFinish(fleet::FinishReason::kCancelled);
    call.End(absl::OkStatus());
  });
  EXPECT_EQ(Run(Prompt("x")), absl::OkStatus());
  EXPECT_EQ(sink_->Text(), "hello");
  EXPECT_EQ(engines_["b"].calls(), 1);
}

TEST_F(RelayRetryTest, AStreamThatClosesWithoutAFinishReasonIsAnError) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("x");
    call.End(absl::OkStatus());
  });
  EXPECT_EQ(Run(Prompt("x")).code(), absl::StatusCode::kInternal);
}

TEST_F(RelayRetryTest, AnIndexThatWasNotAskedForIsAnError) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("x", 7);
    call.WaitCancelled();
  });
  const absl::Status status = Run(Prompt("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("index 7"));
  EXPECT_THAT(sink_->events(), SizeIs(0));
}

TEST_F(RelayRetryTest, ACancelledRequestIsNotTriedAgain) {
  Serve({"a", "b"});
  absl::Notification asked;
  engines_["a"].SetScript([&](FakeCall& call) {
    asked.Notify();
    call.WaitCancelled();
    call.End(absl::UnavailableError("died while it was cancelled"));
  });
  auto sink = std::make_shared<CollectingSink>();
  auto call = relay_->Generate(Prompt("x"), sink);
  asked.WaitForNotification();
  (*call)->Cancel(relay::ClientGone());
  EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engines_["b"].calls(), 0);
}

TEST_F(RelayRetryTest, LoadSpreadsOverTheEnginesOfAModel) {
  Serve({"a", "b"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  engines_["b"].SetScript(fakes::NeverAnswer);
  std::vector<std::shared_ptr<relay::GenerateCall>> calls;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    calls.push_back(*relay_->Generate(Prompt("x"), sinks.back()));
  }
  EXPECT_EQ(engines_["a"].calls(), 3);
  EXPECT_EQ(engines_["b"].calls(), 3);
  for (const auto& call : calls) call->Cancel(relay::ClientGone());
  for (const auto& sink : sinks) EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kCancelled);
}

// Requests, cancellations, dying engines and news of the cluster at the same time: each request ends exactly once.
TEST_F(RelayRetryTest, EveryRequestEndsOnceWhateverHappensAtTheSameTime) {
  Serve({"a", "b"});
  std::atomic<int> turn = 0;
  const auto unreliable = [&turn](FakeCall& call) {
    switch (turn++ % 3) {
      case 0:
        return DieAfter(0)(call);
      case 1:
        return fakes::SayHello(call);
      default:
        return DieAfter(1)(call);
    }
  };
  engines_["a"].SetScript(unreliable);
  engines_["b"].SetScript(unreliable);
  ExpectEveryRequestEndsOnce(/*clients=*/4, /*requests=*/50, [this](int i) {
    fleet::EngineStatus news = Ready("b");
    news.load.running_requests = i % 3;
    fleet_->OnUpdate(news);
  });
}

}  // namespace
}  // namespace swiftcache::gateway
