// SPDX-License-Identifier: Apache-2.0
#include "gateway/route/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/fakes/fake_engine_client.h"

namespace swiftcache::gateway::route {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RouteTest : public ::testing::Test {
 protected:
  RouteTest() { model_.name = "m"; }

  void Add(const std::string& name, int64_t of_others, fleet::EngineState state = fleet::EngineState::kReady,
           int64_t max_len = 100) {
    fleet::EngineView engine;
    engine.link = std::make_shared<fleet::EngineLink>(name, "m", backend_.NewClient());
    engine.state = state;
    engine.max_model_len_tokens = max_len;
    engine.requests_of_others = of_others;
    model_.engines.push_back(std::move(engine));
  }
  std::string Pick(const Tried& tried = {}, int64_t prompt_tokens = 10, int64_t answer_tokens = 0) {
    auto picked = PickEngine(model_, {prompt_tokens, answer_tokens}, tried);
    return picked.ok() ? model_.engines[*picked].link->name() : picked.status().ToString();
  }

  fakes::FakeEngine backend_;
  fleet::ModelView model_;
};

TEST_F(RouteTest, PicksTheLeastLoadedAndTheFirstAmongEquals) {
  Add("a", 3);
  Add("b", 1);
  Add("c", 1);
  EXPECT_EQ(Pick(), "b");
}

TEST_F(RouteTest, EqualsAreTakenInAnotherOrderByEachGateway) {
  Add("a", 1);
  Add("b", 2);
  Add("c", 1);
  const auto picked = [&](size_t first) { return *PickEngine(model_, {.prompt = 10}, {}, first); };
  EXPECT_EQ(picked(0), 0);
  EXPECT_EQ(picked(1), 2);
  EXPECT_EQ(picked(2), 2);
  EXPECT_EQ(picked(3), 0);
  EXPECT_EQ(picked(std::numeric_limits<size_t>::max()), 0) << "3 divides it";
}

TEST_F(RouteTest, CountsOwnRequestsUnderWayBeforeTheyAreReported) {
  Add("a", 0);
  Add("b", 1);
  const fleet::EngineLink::InFlight one(model_.engines[0].link), two(model_.engines[0].link);
  EXPECT_EQ(Pick(), "b");
}

TEST_F(RouteTest, AnAnswerIsNotCutOffWhereAnotherEngineHasRoomForIt) {
  Add("short", 0, fleet::EngineState::kReady, 100);
  Add("busy", 9, fleet::EngineState::kReady, 1000);
  Add("long", 5, fleet::EngineState::kReady, 1000);
  EXPECT_EQ(Pick({}, 90), "short") << "it says nothing of its answer";
  EXPECT_EQ(Pick({}, 90, 10), "short");
  EXPECT_EQ(Pick({}, 90, 11), "long");
  EXPECT_EQ(Pick({}, 90, std::numeric_limits<int64_t>::max()), "long") << "of those that cut off least";
  EXPECT_EQ(Pick({model_.engines[1].link, model_.engines[2].link}, 90, 11), "short");
}

TEST_F(RouteTest, WhereARequestFailedOfLateTheNextGoesOnlyIfThereIsNoOtherEngine) {
  Add("failed", 0, fleet::EngineState::kReady, 10'000);
  Add("busy", 9, fleet::EngineState::kReady, 100);
  EXPECT_EQ(Pick({}, 10, 900), "failed");
  model_.engines[0].suspect = true;
  EXPECT_EQ(Pick({}, 10, 900), "busy") << "an answer that is cut off is better than none";
  EXPECT_EQ(Pick({}, 100), "failed");
  model_.engines[1].suspect = true;
  EXPECT_EQ(Pick({}, 10), "failed");
  model_.engines[1].suspect = false;
  Add("short", 0, fleet::EngineState::kReady, 50);
  EXPECT_EQ(Pick({}, 10, 9000), "busy") << "the room of who is not asked is no measure: 40 is far less than 90";
}

TEST_F(RouteTest, ALittleMoreRoomForTheAnswerIsNotWorthAQueue) {
  constexpr int64_t kAnyAnswer = std::numeric_limits<int64_t>::max();
  Add("idle", 0, fleet::EngineState::kReady, 32'768);
  Add("busy", 5, fleet::EngineState::kReady, 32'784);
  EXPECT_EQ(Pick({}, 768, kAnyAnswer), "idle") << "16 of 32,016 tokens";
  EXPECT_EQ(Pick({}, 768, 32'016), "idle");
  EXPECT_EQ(Pick({}, 32'700, kAnyAnswer), "busy") << "16 of 84";
  EXPECT_EQ(Pick({}, 32'700, 69), "idle") << "1 of 69";
  Add("longer", 9, fleet::EngineState::kReady, 36'000);
  EXPECT_EQ(Pick({}, 768, kAnyAnswer), "longer") << "3,232 of 35,232";
  EXPECT_EQ(Pick({}, 768, 33'000), "idle") << "1,000 of 33,000";
}

TEST_F(RouteTest, SkipsWhatWasTriedIsNotReadyOrIsTooSmall) {
  Add("a", 0);
  Add("b", 0, fleet::EngineState::kDraining);
  Add("c", 0, fleet::EngineState::kStalled);
  Add("d", 0, fleet::EngineState::kReady, 10);
  Add("e", 9);
  EXPECT_EQ(Pick({model_.engines[0].link}), "e");
}

TEST_F(RouteTest, SaysWhatItFoundWhenNobodyCanTakeTheRequest) {
  Add("a", 0);
  Add("b", 0, fleet::EngineState::kStarting);
  const absl::Status status = PickEngine(model_, {.prompt = 10}, {model_.engines[0].link}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("1 READY, 1 STARTING"), HasSubstr("tried and failed: a")));
}

TEST_F(RouteTest, RetriesOnlyALostOrFullOrSmallEngineAndOnlyBeforeAnythingWasSent) {
  EXPECT_TRUE(ShouldRetry(absl::UnavailableError("gone"), false));
  EXPECT_FALSE(ShouldRetry(absl::UnavailableError("gone"), true));
  EXPECT_TRUE(ShouldRetry(absl::ResourceExhaustedError("full"), false));
  EXPECT_FALSE(ShouldRetry(absl::ResourceExhaustedError("full"), true));
  EXPECT_TRUE(ShouldRetry(absl::OutOfRangeError("no memory"), false));
  EXPECT_FALSE(ShouldRetry(absl::OutOfRangeError("no memory"), true));
  EXPECT_FALSE(ShouldRetry(absl::InvalidArgumentError("bad"), false));
  EXPECT_FALSE(ShouldRetry(absl::OkStatus(), false));
}

TEST_F(RouteTest, NotFoundListsWhatIsServedAndShowsNoControlCharacters) {
  Add("a", 0);
  model_.text = std::shared_ptr<const fleet::ModelText>();
  fleet::ModelView loading;
  loading.name = "loading";
  const absl::Status status = UnknownModel("x\nforged" + std::string(500, 'y'), {model_, loading});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("x\\nforged"), HasSubstr("served: m"), Not(HasSubstr("\n")), Not(HasSubstr("loading"))));
  EXPECT_LT(status.message().size(), 250);
}

// Clients give up at NOT_FOUND, and the first engines may still load.
TEST_F(RouteTest, WhereNoModelIsServedYetAnyMayCome) {
  fleet::ModelView loading;
  loading.name = "loading";
  for (const absl::Status& status : {UnknownModel("m", {}), UnknownModel("m", {loading})}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("try again shortly"));
  }
}

}  // namespace
}  // namespace swiftcache::gateway::route
