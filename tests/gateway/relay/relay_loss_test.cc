// SPDX-License-Identifier: Apache-2.0
// What requests under way hear when the broker says that their engine died, stands still or took its leave. The engines
// here stay silent and close no socket: without that word, and none of the engine, each of these requests would wait
// for ever.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::FakeCall;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Sends `tokens` letters and is then silent until it is cancelled.
std::function<void(FakeCall&)> FreezeAfter(int tokens) {
  return [tokens](FakeCall& call) {
    for (int i = 0; i < tokens; ++i) call.SendText("x");
    call.WaitCancelled();
  };
}

// "h", and the rest of it once the test says so.
std::function<void(FakeCall&)> HelloInTwo(absl::Notification& go_on) {
  return [&go_on](FakeCall& call) {
    call.SendText("h");
    go_on.WaitForNotification();
    call.SendText("ello");
    call.SendFinish(fleet::FinishReason::kStop, 0, {fakes::kEos});
    call.End(absl::OkStatus());
  };
}

class RelayLossTest : public RelayFixture {
 protected:
  static fleet::EngineStatus In(fleet::EngineState state, const std::string& engine) {
    fleet::EngineStatus status = Ready(engine);
    status.info.state = state;
    return status;
  }
  // What a process that is gone looks like.
  void Die(const std::string& engine) {
    engines_[engine].SetAnswers(false);
    fleet_->OnRemoved(engine, /*died=*/true);
  }
  void Stall(const std::string& engine) { fleet_->OnUpdate(In(fleet::EngineState::kStalled, engine)); }

  // A request that engine a, by its name the first choice, has taken.
  std::shared_ptr<CollectingSink> StartOnA() {
    auto sink = std::make_shared<CollectingSink>();
    const int before = engines_["a"].calls();
    calls_.push_back(*relay_->Generate(Prompt("x"), sink));
    EXPECT_EQ(engines_["a"].calls(), before + 1);
    return sink;
  }

  std::vector<std::shared_ptr<relay::GenerateCall>> calls_;
};

TEST_F(RelayLossTest, ARequestWithoutATokenMovesFromAStalledEngineToAnother) {
  Serve({"a", "b"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  const auto sink = StartOnA();
  Stall("a");
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
  EXPECT_EQ(engines_["b"].calls(), 1);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_gateway_retries_total{model_name=\"m\"} 1"));
}

TEST_F(RelayLossTest, ARequestWithoutATokenMovesFromADeadEngineToAnother) {
  Serve({"a", "b"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  const auto sink = StartOnA();
  Die("a");
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
}

TEST_F(RelayLossTest, ARequestThatHadBegunEndsWithOneClearError) {
  Serve({"a", "b"});
  engines_["a"].SetScript(FreezeAfter(2));
  const auto sink = StartOnA();
  sink->WaitEvents(2);
  Stall("a");
  const absl::Status status = sink->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("engine a was lost after 2 tokens"), HasSubstr("stands still")));
  Die("a");  // a second loss of the same engine: the sink would report a second end
  EXPECT_EQ(sink->Text(), "xx");
  EXPECT_EQ(engines_["b"].calls(), 0);
}

TEST_F(RelayLossTest, WithoutAnotherEngineTheErrorSaysWhy) {
  Serve({"a"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  const auto sink = StartOnA();
  Die("a");
  const absl::Status status = sink->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tried and failed: a"), HasSubstr("it died")));
}

TEST_F(RelayLossTest, WhatALostEngineStillSaysIsNotHeard) {
  Serve({"a", "b"});
  engines_["a"].SetScript([](FakeCall& call) {
    call.WaitCancelled();
    call.SendText("late");
    call.SendFinish(fleet::FinishReason::kStop);
    call.End(absl::OkStatus());
  });
  const auto sink = StartOnA();
  Stall("a");
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
}

TEST_F(RelayLossTest, ABrokerThatIsCutOffFromAnEngineThatAnswersCostsNothing) {
  Serve({"a"});
  absl::Notification go_on;
  engines_["a"].SetScript(HelloInTwo(go_on));
  const auto sink = StartOnA();
  sink->WaitEvents(1);
  fleet_->OnRemoved("a", /*died=*/true);
  while (engines_["a"].pings() < 3) std::this_thread::yield();
  go_on.Notify();
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
  EXPECT_EQ(Run(Prompt("x")), absl::OkStatus());
}

// Where another process is at an engine's address, that one may serve what goes there.
TEST_F(RelayLossTest, WhatAnotherProcessServesIsNotEndedWithTheOneBefore) {
  Serve({"a"});
  absl::Notification go_on;
  engines_["a"].SetPing(absl::NotFoundError("another process is there now"));
  engines_["a"].SetScript(HelloInTwo(go_on));
  const auto sink = StartOnA();
  sink->WaitEvents(1);
  fleet_->OnRemoved("a", /*died=*/true);
  while (fleet_->Find("m").has_value()) std::this_thread::yield();
  go_on.Notify();
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
}

TEST_F(RelayLossTest, AModelWhoseLastEngineLeftIsToBeTriedAgain) {
  Serve({"a"});
  Die("a");
  while (fleet_->Find("m").has_value()) std::this_thread::yield();
  const absl::Status status = Run(Prompt("x"));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no engine of model m is there"));
}

TEST_F(RelayLossTest, AnEngineThatAnswersNoMoreIsLostThen) {
  Serve({"a"});
  engines_["a"].SetScript(FreezeAfter(2));
  const auto sink = StartOnA();
  sink->WaitEvents(2);
  fleet_->OnRemoved("a", /*died=*/true);
  while (engines_["a"].pings() < 3) std::this_thread::yield();
  engines_["a"].SetAnswers(false);
  const absl::Status status = sink->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("engine a was lost after 2 tokens"), HasSubstr("it died")));
}

TEST_F(RelayLossTest, AnEngineThatTookItsLeaveFinishesItsRequests) {
  Serve({"a", "b"});
  absl::Notification left;
  engines_["a"].SetScript([&left](FakeCall& call) {
    left.WaitForNotification();
    fakes::SayHello(call);
  });
  const auto sink = StartOnA();
  fleet_->OnUpdate(In(fleet::EngineState::kDraining, "a"));
  fleet_->OnRemoved("a", /*died=*/false);
  left.Notify();
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->Text(), "hello");
  EXPECT_EQ(engines_["b"].calls(), 0);
}

TEST_F(RelayLossTest, ARestartedBrokerThatKnowsNoEngineYetLosesNothing) {
  Serve({"a", "b"});
  absl::Notification back;
  engines_["a"].SetScript([&back](FakeCall& call) {
    back.WaitForNotification();
    fakes::SayHello(call);
  });
  const auto sink = StartOnA();
  fleet_->OnSnapshot("broker-2", {});
  fleet_->OnUpdate(Ready("a"));
  back.Notify();
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(engines_["b"].calls(), 0);
}

TEST_F(RelayLossTest, ASnapshotTooMaySayThatAnEngineStandsStill) {
  Serve({"a", "b"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  const auto sink = StartOnA();
  fleet_->OnSnapshot("broker-1", {In(fleet::EngineState::kStalled, "a"), Ready("b")});
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(engines_["b"].calls(), 1);
}

TEST_F(RelayLossTest, AnEngineThatMovesAgainServesAgain) {
  Serve({"a"});
  Stall("a");
  EXPECT_EQ(Run(Prompt("x")).code(), absl::StatusCode::kUnavailable);
  fleet_->OnUpdate(Ready("a"));
  EXPECT_EQ(Run(Prompt("x")), absl::OkStatus());
}

// Engines die and stall while requests begin, stream, end and are cancelled: each request ends exactly once.
TEST_F(RelayLossTest, EveryRequestEndsOnceWhileEnginesComeAndGo) {
  Serve({"a", "b"});
  std::atomic<int> turn = 0;
  const auto unreliable = [&turn](FakeCall& call) {
    const int now = turn++;
    return now % 2 == 0 ? FreezeAfter(now % 3)(call) : fakes::SayHello(call);
  };
  engines_["a"].SetScript(unreliable);
  engines_["b"].SetScript(unreliable);
  ExpectEveryRequestEndsOnce(/*clients=*/3, /*requests=*/40, [this](int i) {
    const std::string engine = i % 2 == 0 ? "a" : "b";
    if (i % 3 == 0) Die(engine);
    if (i % 3 != 0) Stall(engine);
    fleet_->OnUpdate(Ready(engine));
  });
}

}  // namespace
}  // namespace swiftcache::gateway
