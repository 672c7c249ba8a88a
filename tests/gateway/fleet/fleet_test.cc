// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_engine_client.h"
#include "tests/fakes/gate.h"

namespace swiftcache::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Losses final : public fleet::LossObserver {
 public:
  void OnLost(const absl::Status&) override { ++count; }
  std::atomic<int> count = 0;
};

class FleetTest : public ::testing::Test {
 protected:
  FleetTest() {
    fleet_ = *fleet::Fleet::Create(
        {.cards = {.min_backoff = absl::Milliseconds(1)},
         .prober = {.interval = absl::Milliseconds(1)},
         .restart_grace = absl::Milliseconds(5)},
        [this](const fleet::EngineInfo& info) {
          ++clients_made_;
          return engine_.NewClient();
        },
        clock_);
  }
  static fleet::EngineStatus Engine(const std::string& name, const std::string& hash = "h",
                                    fleet::EngineState state = fleet::EngineState::kReady) {
    return {.info = {.name = name,
                     .instance_id = name + "-1",
                     .model_name = "m",
                     .address = "memory:1",
                     .max_model_len_tokens = 100,
                     .model_card_hash = hash,
                     .state = state},
            .load = {}};
  }
  static fleet::EngineStatus Loaded(const std::string& name, int64_t running, int64_t waiting = 0) {
    fleet::EngineStatus engine = Engine(name);
    engine.load.running_requests = running;
    engine.load.waiting_requests = waiting;
    return engine;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    if (auto model = fleet_->Find("m")) {
      for (const fleet::EngineView& engine : model->engines) names.push_back(engine.link->name());
    }
    return names;
  }
  // Moves the fake clock until the engine was asked so often.
  void WaitForPings(int pings) {
    while (engine_.pings() < pings) {
      clock_.Advance(absl::Milliseconds(1));
      std::this_thread::yield();
    }
  }
  // Until the roll call has given up whom it must.
  void WaitForNames(const std::vector<std::string>& names) {
    while (Names() != names) std::this_thread::yield();
  }
  // Without moving the clock; false: not within five seconds.
  static bool Soon(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }
  // Moves the fake clock past any pause until the outcome of a fetch is `wanted`.
  void WaitForText(absl::StatusCode wanted) {
    while (fleet_->Find("m")->text.status().code() != wanted) {
      clock_.Advance(absl::Milliseconds(10));
      std::this_thread::yield();
    }
  }

  // Has "a" asked for its card until fetch `held` has begun, which waits for the gate.
  void AskUntilHeld(int held) {
    gate_.Close();
    engine_.on_card_fetch = [this, held](int fetch) { return fetch == held ? gate_.Pass() : void(); };
    while (engine_.card_fetches() < held) {
      clock_.Advance(absl::Seconds(10));
      fleet_->OnSnapshot("b1", {Engine("a")});  // wakes who sleeps through a pause
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  FakeClock clock_;
  Gate gate_;
  fakes::FakeEngine engine_;
  int clients_made_ = 0;
  std::unique_ptr<fleet::Fleet> fleet_;
};

TEST_F(FleetTest, KnowsNothingBeforeTheFirstSnapshot) {
  EXPECT_FALSE(fleet_->has_snapshot());
  EXPECT_FALSE(fleet_->Find("m").has_value());
  fleet_->OnSnapshot("b1", {});
  EXPECT_TRUE(fleet_->has_snapshot());
  EXPECT_THAT(fleet_->Models(), IsEmpty());
}

TEST_F(FleetTest, IsReadyOnceEachCardHasComeOrFailed) {
  std::atomic<int> ready = 0;
  gate_.Close();
  engine_.SetCard(fakes::ByteModelCard(""), {absl::UnavailableError("no answer")});
  engine_.on_card_fetch = [this](int) { gate_.Pass(); };
  const auto fleet = *fleet::Fleet::Create(
      {.on_ready = [&ready] { ++ready; }}, [this](const fleet::EngineInfo&) { return engine_.NewClient(); }, clock_);
  EXPECT_FALSE(fleet->ready());
  fleet->OnSnapshot("b1", {Engine("a")});
  ASSERT_TRUE(gate_.WaitUntilSomebodyHangs());
  EXPECT_FALSE(fleet->ready());
  gate_.Open();
  while (ready == 0) std::this_thread::yield();
  EXPECT_TRUE(fleet->ready());
  fleet->OnUpdate(Engine("b", "another"));
  EXPECT_TRUE(fleet->ready()) << "for good";
  fleet->OnSnapshot("b2", {});
  EXPECT_EQ(ready, 1);
}

TEST_F(FleetTest, WithoutEnginesItIsReadyWithTheFirstSnapshot) {
  EXPECT_FALSE(fleet_->ready());
  fleet_->OnSnapshot("b1", {});
  EXPECT_TRUE(fleet_->ready());
}

TEST_F(FleetTest, FollowsUpdatesAndRemovals) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  fleet_->OnUpdate(Engine("b"));
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  fleet_->OnRemoved("a", /*died=*/false);
  EXPECT_THAT(Names(), ElementsAre("b"));
}

TEST_F(FleetTest, ASnapshotOfTheSameBrokerReplacesTheTable) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  engine_.SetAnswers(false);
  fleet_->OnSnapshot("b1", {Engine("b")});
  WaitForNames({"b"});
  EXPECT_EQ(engine_.pings(), 3);
}

TEST_F(FleetTest, AnEngineThatIsSilentForAWhileIsNotGivenUp) {
  const absl::Status silence = absl::DeadlineExceededError("no answer");
  fleet_->OnSnapshot("b1", {Engine("a")});
  const auto lost = std::make_shared<Losses>();
  const fleet::EngineLink::InFlight request(fleet_->Find("m")->engines[0].link, lost);
  engine_.SetPing(absl::OkStatus(), {silence, silence, absl::OkStatus(), silence, silence});
  fleet_->OnRemoved("a", /*died=*/true);
  WaitForPings(8);
  EXPECT_THAT(Names(), ElementsAre("a"));
  EXPECT_EQ(lost->count, 0);
}

TEST_F(FleetTest, AnEngineWhereNobodyListensIsGivenUpAtOnce) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  engine_.SetPing(absl::UnavailableError("connection refused"));
  fleet_->OnRemoved("a", /*died=*/true);
  WaitForNames({"b"});
  EXPECT_EQ(engine_.pings(), 1);
}

TEST_F(FleetTest, AnEngineThatTheBrokerHasLostStaysWhileItAnswers) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  const auto link = fleet_->Find("m")->engines[0].link;
  fleet_->OnRemoved("a", /*died=*/true);
  WaitForPings(3);
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  EXPECT_EQ(fleet_->Find("m")->engines[0].link, link);
  engine_.SetAnswers(false);
  while (Names().size() == 2) clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(Names(), ElementsAre("b"));
}

TEST_F(FleetTest, AnEngineThatASnapshotLacksStaysWhileItAnswers) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  fleet_->OnSnapshot("b1", {Engine("b")});
  WaitForPings(2);
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
}

TEST_F(FleetTest, AnEngineOfWhichTheBrokerHearsAgainIsNotAsked) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  const auto link = fleet_->Find("m")->engines[0].link;
  fleet_->OnRemoved("a", /*died=*/true);
  WaitForPings(1);
  fleet_->OnUpdate(Engine("a"));
  engine_.SetAnswers(false);
  const int pings = engine_.pings() + 1;  // one may have been under way
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(absl::Milliseconds(1));
    absl::Notification().WaitForNotificationWithTimeout(absl::Milliseconds(1));
  }
  EXPECT_LE(engine_.pings(), pings);
  EXPECT_EQ(fleet_->Find("m")->engines[0].link, link);
}

TEST_F(FleetTest, WhoTookTheNameOfAnEngineInDoubtIsNotInDoubt) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  const auto old = fleet_->Find("m")->engines[0].link;  // held, as by a request under way
  fleet_->OnRemoved("a", /*died=*/true);
  WaitForPings(1);
  fleet::EngineStatus other = Engine("a");
  other.info.instance_id = "a-2";
  fleet_->OnUpdate(other);
  engine_.SetAnswers(false);
  const auto lost = std::make_shared<Losses>();
  const fleet::EngineLink::InFlight request(old, lost);
  while (lost->count == 0) clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(FleetTest, EnginesThatARestartedBrokerHasNotMetYetStayForAWhile) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  fleet_->OnSnapshot("b2", {});
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  fleet_->OnUpdate(Engine("a"));
  fleet_->OnSnapshot("b2", {Engine("a")});
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  EXPECT_EQ(engine_.pings(), 0);
  engine_.SetAnswers(false);
  clock_.Advance(absl::Milliseconds(6));
  WaitForNames({"a"});
}

TEST_F(FleetTest, KeepsTheLinkOfAnEngineUntilAnotherProcessTakesItsName) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  auto before = fleet_->Find("m")->engines[0].link;
  fleet_->OnUpdate(Loaded("a", 5));
  EXPECT_EQ(fleet_->Find("m")->engines[0].link, before);
  EXPECT_EQ(fleet_->Find("m")->engines[0].requests_of_others, 5);
  fleet::EngineStatus other = Engine("a");
  other.info.instance_id = "a-2";
  fleet_->OnUpdate(other);
  EXPECT_NE(fleet_->Find("m")->engines[0].link, before);
  EXPECT_EQ(clients_made_, 2);
}

TEST_F(FleetTest, WhatAnEngineReportsIsOfOthersAsFarAsItIsNotOurs) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  const auto others = [&] { return fleet_->Find("m")->engines[0].requests_of_others; };
  {
    const fleet::EngineLink::InFlight one(fleet_->Find("m")->engines[0].link);
    fleet_->OnUpdate(Loaded("a", 5));
    EXPECT_EQ(others(), 4);
    fleet_->OnUpdate(Loaded("a", 0));  // it has not heard of it
    EXPECT_EQ(others(), 0);
    fleet_->OnUpdate(Loaded("a", 1));
  }
  EXPECT_EQ(others(), 0) << "what has ended here is no load";
}

TEST_F(FleetTest, OfOthersRequestsNothingIsKnownWithoutTheBroker) {
  fleet_->OnSnapshot("b1", {Loaded("a", 5, 3)});
  EXPECT_EQ(fleet_->Find("m")->engines[0].requests_of_others, 8);
  fleet_->OnBrokerLost();
  EXPECT_EQ(fleet_->Find("m")->engines[0].requests_of_others, 0);
  fleet_->OnSnapshot("b1", {Loaded("a", 7)});
  EXPECT_EQ(fleet_->Find("m")->engines[0].requests_of_others, 7);
  fleet_->OnRemoved("a", /*died=*/true);
  EXPECT_EQ(fleet_->Find("m")->engines[0].requests_of_others, 0) << "it is only pinged";
}

TEST_F(FleetTest, AnEngineIsSuspectForAWhileAfterARequestFailedThere) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  const auto suspect = [&](size_t engine) { return fleet_->Find("m")->engines[engine].suspect; };
  EXPECT_FALSE(suspect(0));
  fleet_->Find("m")->engines[0].link->NoteEnd(absl::UnavailableError("gone"), clock_.Now());
  clock_.Advance(absl::Milliseconds(2999));
  EXPECT_TRUE(suspect(0));
  EXPECT_FALSE(suspect(1));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(suspect(0));
}

TEST_F(FleetTest, AnEngineIsSuspectWhereTwoRequestsInARowFailed) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  const auto ends = [&](const absl::Status& status) {
    fleet_->Find("m")->engines[0].link->NoteEnd(status, clock_.Now());
    return fleet_->Find("m")->engines[0].suspect;
  };
  EXPECT_FALSE(ends(absl::InternalError("a row without numbers"))) << "it may be the request's own";
  EXPECT_FALSE(ends(absl::OkStatus()));
  EXPECT_FALSE(ends(absl::InternalError("a row without numbers")));
  EXPECT_FALSE(ends(absl::CancelledError("the client left"))) << "which says nothing";
  EXPECT_TRUE(ends(absl::InternalError("a step failed")));
  clock_.Advance(absl::Seconds(3));
  EXPECT_FALSE(ends(absl::CancelledError("the client left")));
  EXPECT_TRUE(ends(absl::InternalError("a step failed"))) << "it still fails";
}

TEST_F(FleetTest, FetchesACardOnceForAllEnginesThatShareIt) {
  fleet_->OnSnapshot("b1", {Engine("a"), Engine("b")});
  WaitForText(absl::StatusCode::kOk);
  fleet_->OnUpdate(Engine("c"));
  fleet_->OnRemoved("a", /*died=*/false);
  EXPECT_TRUE(fleet_->Find("m")->text.ok());
  EXPECT_EQ(engine_.card_fetches(), 1);
}

TEST_F(FleetTest, DoesNotAskAStartingEngineForItsCard) {
  fleet_->OnSnapshot("b1", {Engine("a", "h", fleet::EngineState::kStarting)});
  EXPECT_EQ(fleet_->Find("m")->text.status().code(), absl::StatusCode::kUnavailable);
  fleet_->OnUpdate(Engine("a"));
  WaitForText(absl::StatusCode::kOk);
  EXPECT_EQ(engine_.card_fetches(), 1);
}

TEST_F(FleetTest, TriesAgainWhenACardCannotBeFetched) {
  engine_.SetCard(fakes::ByteModelCard(""), {absl::UnavailableError("starting"), absl::DataLossError("hash")});
  fleet_->OnSnapshot("b1", {Engine("a")});
  WaitForText(absl::StatusCode::kOk);
  EXPECT_EQ(engine_.card_fetches(), 3);
}

TEST_F(FleetTest, AnEngineThatComesIsAskedForItsCardAtOnceWhateverAnotherDid) {
  std::deque<absl::Status> failures(20, absl::UnavailableError("no answer"));
  failures.back() = absl::DataLossError("hash");
  engine_.SetCard(fakes::ByteModelCard(""), failures);
  AskUntilHeld(20);
  gate_.Open();
  WaitForText(absl::StatusCode::kDataLoss);
  fleet_->OnUpdate(Engine("b"));  // and the clock stands still: "a" is not asked again
  EXPECT_TRUE(Soon([this] { return fleet_->Find("m")->text.ok(); }));
  EXPECT_EQ(engine_.card_fetches(), 21);
}

TEST_F(FleetTest, AnEngineThatComesWaitsForNoneThatFailedBeforeAndDoesNotAnswer) {
  engine_.SetCard(fakes::ByteModelCard(""), {absl::UnavailableError("starting")});
  AskUntilHeld(2);
  fleet_->OnUpdate(Engine("b"));
  EXPECT_TRUE(Soon([this] { return fleet_->Find("m")->text.ok(); }));
  gate_.Open();
}

TEST_F(FleetTest, DoesNotTryAgainWhatCannotBeUnderstood) {
  fleet::ModelCard card = fakes::ByteModelCard("");
  card.tokenizer.merges = {{0, 100000}};
  engine_.SetCard(card);
  fleet_->OnSnapshot("b1", {Engine("a")});
  WaitForText(absl::StatusCode::kInvalidArgument);
  clock_.Advance(absl::Hours(1));
  fleet_->OnUpdate(Engine("b"));
  EXPECT_EQ(fleet_->Find("m")->text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_.card_fetches(), 1);
}

TEST_F(FleetTest, AModelsEnginesAreThoseThatShareTheCard) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  WaitForText(absl::StatusCode::kOk);
  fleet_->OnUpdate(Engine("b", "another"));
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(FleetTest, AnEngineThatEndsOrStartsWithAnotherCardHidesNoneThatServes) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  WaitForText(absl::StatusCode::kOk);
  fleet_->OnUpdate(Engine("b", "another"));
  for (const fleet::EngineState state : {fleet::EngineState::kDraining, fleet::EngineState::kStalled}) {
    fleet_->OnUpdate(Engine("a", "h", state));
    (void)Soon([this] { return Names() == std::vector<std::string>{"b"}; });
    EXPECT_THAT(Names(), ElementsAre("b")) << fleet::Name(state);
  }
  fleet_->OnUpdate(Engine("a"));  // back, with a card that is known
  EXPECT_THAT(Names(), ElementsAre("a"));
  fleet_->OnUpdate(Engine("a", "h", fleet::EngineState::kStarting));
  EXPECT_THAT(Names(), ElementsAre("b"));
  fleet_->OnRemoved("b", /*died=*/false);
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(FleetTest, OneEngineWithAnotherCardHidesNoneOfTheMany) {
  fleet_->OnSnapshot("b1", {Engine("b"), Engine("c")});
  WaitForText(absl::StatusCode::kOk);
  fleet_->OnUpdate(Engine("a", "another"));
  while (engine_.card_fetches() < 2) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {  // and when the card is read
    ASSERT_THAT(Names(), ElementsAre("b", "c"));
    absl::SleepFor(absl::Milliseconds(5));
  }
  fleet_->OnUpdate(Engine("c", "another"));  // now two have it
  (void)Soon([this] { return Names() == std::vector<std::string>{"a", "c"}; });
  EXPECT_THAT(Names(), ElementsAre("a", "c"));
}

TEST_F(FleetTest, AModelIsKnownForAWhileAfterItsLastEngineLeft) {
  fleet_->OnSnapshot("b1", {Engine("a")});
  EXPECT_FALSE(fleet_->LeftOfLate("m"));
  fleet_->OnRemoved("a", /*died=*/false);
  EXPECT_FALSE(fleet_->Find("m").has_value());
  clock_.Advance(absl::Minutes(10));
  EXPECT_TRUE(fleet_->LeftOfLate("m"));
  EXPECT_FALSE(fleet_->LeftOfLate("another"));
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(fleet_->LeftOfLate("m"));
}

TEST_F(FleetTest, AnUnusableTemplateLeavesTheTokenizerUsable) {
  engine_.SetCard(fakes::ByteModelCard("{% macro x() %}{% endmacro %}{{ 5 | no_such_filter }}"));
  fleet_->OnSnapshot("b1", {Engine("a")});
  WaitForText(absl::StatusCode::kOk);
  const fleet::ModelText& text = **fleet_->Find("m")->text;
  EXPECT_FALSE(text.chat_status().ok());
  EXPECT_THAT(text.tokenizer().Encode("hi", {}), ElementsAre('h', 'i'));
}

TEST_F(FleetTest, TheTablesAgeIsTheTimeSinceTheBrokerWasLost) {
  fleet_->OnBrokerLost();
  EXPECT_EQ(fleet_->table_age(), std::nullopt);  // there is no table yet
  fleet_->OnSnapshot("b1", {Engine("a")});
  clock_.Advance(absl::Hours(1));  // nothing changes
  EXPECT_EQ(fleet_->table_age(), absl::ZeroDuration());
  fleet_->OnBrokerLost();
  clock_.Advance(absl::Seconds(3));
  fleet_->OnBrokerLost();  // another stream without a snapshot
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(fleet_->table_age(), absl::Seconds(7));
  fleet_->OnSnapshot("b1", {Engine("a")});
  EXPECT_EQ(fleet_->table_age(), absl::ZeroDuration());
}

TEST_F(FleetTest, WantsAClientFactory) {
  auto fleet = fleet::Fleet::Create({}, nullptr, clock_);
  EXPECT_EQ(fleet.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(fleet.status().message()), HasSubstr("make_client"));
}

}  // namespace
}  // namespace swiftcache::gateway
