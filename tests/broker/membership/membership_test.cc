// SPDX-License-Identifier: Apache-2.0
#include "broker/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/broker/engines.h"

namespace swiftcache::broker::membership {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipTest : public ::testing::Test {
 protected:
  // The state of `name` as others see it; dies if it is not there.
  EngineState StateOf(const std::string& name) {
    for (const EngineStatus& status : table_.Snapshot()) {
      if (status.info.name == name) return status.info.state;
    }
    ADD_FAILURE() << name << " is not in the table";
    return EngineState::kStarting;
  }
  absl::Status Beat(const std::string& name, const LoadReport& load, const std::string& instance_id = "i1") {
    return table_.Heartbeat(name, instance_id, load, now_);
  }

  Options options_{
      .heartbeat_interval = absl::Milliseconds(500), .heartbeat_misses = 3, .stall_timeout = absl::Seconds(10)};
  Membership table_{options_};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(MembershipTest, RegisteringEntersTheEngineAndTellsIt) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  std::vector<Change> changes = table_.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(std::get<EngineStatus>(changes[0]).info, EngineNamed("a"));
  EXPECT_THAT(table_.Snapshot(), SizeIs(1));
  EXPECT_EQ(table_.CountOf(EngineState::kReady), 1);
}

TEST_F(MembershipTest, RegisteringTheSameInstanceAgainIsIdempotent) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  table_.TakeChanges();
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  EXPECT_THAT(table_.TakeChanges(), IsEmpty());
}

TEST_F(MembershipTest, TheSameInstanceMayBecomeReadyAndDrain) {
  EngineInfo info = EngineNamed("a", "i1", EngineState::kStarting);
  info.address = "";
  info.kv.num_blocks = 0;
  ASSERT_TRUE(table_.Register(info, now_).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kStarting);
  ASSERT_TRUE(table_.Register(EngineNamed("a", "i1", EngineState::kReady), now_).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kReady);
  ASSERT_TRUE(table_.Register(EngineNamed("a", "i1", EngineState::kDraining), now_).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kDraining);
  EXPECT_THAT(table_.TakeChanges(), SizeIs(3));
}

TEST_F(MembershipTest, ALiveNameIsRefusedToAnotherInstanceWithTheRemedy) {
  ASSERT_TRUE(table_.Register(EngineNamed("a", "i1"), now_).ok());
  now_ += absl::Milliseconds(400);
  const absl::Status status = table_.Register(EngineNamed("a", "i2"), now_);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  for (const char* part : {"'a'", "i1", "127.0.0.1:50061", "400ms", "--name"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_EQ(table_.TimeUntilExpiry("a", now_), absl::Milliseconds(1100));
  EXPECT_EQ(table_.TimeUntilExpiry("b", now_), std::nullopt);
}

TEST_F(MembershipTest, ASilentEngineDiesAtItsDeadlineAndNotBefore) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  table_.TakeChanges();
  EXPECT_EQ(table_.NextExpiry(), now_ + absl::Milliseconds(1500));
  table_.Expire(now_ + absl::Milliseconds(1499));
  EXPECT_THAT(table_.TakeChanges(), IsEmpty());
  table_.Expire(now_ + absl::Milliseconds(1500));
  std::vector<Change> changes = table_.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(std::get<Removed>(changes[0]).name, "a");
  EXPECT_TRUE(std::get<Removed>(changes[0]).died);
  EXPECT_EQ(table_.NextExpiry(), std::nullopt);
}

TEST_F(MembershipTest, HeartbeatsKeepAnEngineAlive) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  for (int i = 0; i < 10; ++i) {
    now_ += absl::Milliseconds(1400);
    ASSERT_TRUE(Beat("a", {}).ok());
  }
  EXPECT_THAT(table_.Snapshot(), SizeIs(1));
}

TEST_F(MembershipTest, AfterDeathTheNameIsFreeAndTheOldInstanceMustRegisterAgain) {
  ASSERT_TRUE(table_.Register(EngineNamed("a", "i1"), now_).ok());
  now_ += absl::Milliseconds(1500);
  ASSERT_TRUE(table_.Register(EngineNamed("a", "i2"), now_).ok());
  EXPECT_EQ(Beat("a", {}, "i1").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Beat("a", {}, "i2").ok());
  EXPECT_EQ(table_.Register(EngineNamed("a", "i1"), now_).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(MembershipTest, HeartbeatOfAStrangerIsNotFound) {
  EXPECT_EQ(Beat("nobody", {}).code(), absl::StatusCode::kNotFound);
}

TEST_F(MembershipTest, OnlyTheInstanceItselfDeregisters) {
  ASSERT_TRUE(table_.Register(EngineNamed("a", "i1"), now_).ok());
  table_.TakeChanges();
  table_.Deregister("a", "i2");
  EXPECT_THAT(table_.TakeChanges(), IsEmpty());
  table_.Deregister("a", "i1");
  std::vector<Change> changes = table_.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_FALSE(std::get<Removed>(changes[0]).died);
  table_.Deregister("a", "i1");
  EXPECT_THAT(table_.TakeChanges(), IsEmpty());
}

TEST_F(MembershipTest, OnlyLoadThatChangedIsTold) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  table_.TakeChanges();
  ASSERT_TRUE(Beat("a", {}).ok());
  EXPECT_THAT(table_.TakeChanges(), IsEmpty());
  ASSERT_TRUE(Beat("a", {.running_requests = 2, .kv_blocks_used = 7, .progress = 1}).ok());
  std::vector<Change> changes = table_.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(std::get<EngineStatus>(changes[0]).load.kv_blocks_used, 7);
}

TEST_F(MembershipTest, ProgressThatStandsStillUnderWorkIsAStallUntilItMoves) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Beat("a", {.waiting_requests = 1, .progress = 5}).ok());
    EXPECT_EQ(StateOf("a"), EngineState::kReady) << i;
    now_ += absl::Seconds(1);
  }
  ASSERT_TRUE(Beat("a", {.waiting_requests = 1, .progress = 5}).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kStalled);
  EXPECT_EQ(table_.CountOf(EngineState::kStalled), 1);
  ASSERT_TRUE(Beat("a", {.waiting_requests = 1, .progress = 6}).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kReady);
}

// It has registered again, at a broker that has restarted or had taken it for dead.
TEST_F(MembershipTest, AnEngineThatHasStoodStillIsStalledFromItsFirstReport) {
  constexpr int64_t kSecond = 1'000'000;
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  ASSERT_TRUE(Beat("a", {.running_requests = 1, .progress = 5, .still_micros = 10 * kSecond}).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kStalled);
  ASSERT_TRUE(Beat("a", {.running_requests = 1, .progress = 6}).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kReady);
  ASSERT_TRUE(table_.Register(EngineNamed("b"), now_).ok());
  ASSERT_TRUE(Beat("b", {.waiting_requests = 1, .progress = 5, .still_micros = 9 * kSecond}).ok());
  EXPECT_EQ(StateOf("b"), EngineState::kReady);
  now_ += absl::Seconds(1);
  ASSERT_TRUE(Beat("b", {.waiting_requests = 1, .progress = 5, .still_micros = 10 * kSecond}).ok());
  EXPECT_EQ(StateOf("b"), EngineState::kStalled);
  ASSERT_TRUE(Beat("b", {.progress = 5, .still_micros = 10 * kSecond}).ok());
  EXPECT_EQ(StateOf("b"), EngineState::kReady) << "without work nothing stands still";
}

TEST_F(MembershipTest, AStepThatLastsLongerThanTheStallTimeoutIsNoStallWhileItsLayersPass) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  for (int layer = 0; layer < 60; ++layer) {
    ASSERT_TRUE(Beat("a", {.running_requests = 1, .progress = layer}).ok());
    EXPECT_EQ(StateOf("a"), EngineState::kReady) << layer;
    now_ += absl::Seconds(1);
  }
}

TEST_F(MembershipTest, AStallEndsWhenTheWorkIsGone) {
  options_.stall_timeout = absl::Seconds(1);
  Membership table(options_);
  ASSERT_TRUE(table.Register(EngineNamed("a"), now_).ok());
  ASSERT_TRUE(table.Heartbeat("a", "i1", {.running_requests = 1}, now_).ok());
  ASSERT_TRUE(table.Heartbeat("a", "i1", {.running_requests = 1}, now_ + absl::Seconds(1)).ok());
  EXPECT_EQ(table.CountOf(EngineState::kStalled), 1);
  ASSERT_TRUE(table.Heartbeat("a", "i1", {}, now_ + absl::Seconds(1)).ok());
  EXPECT_EQ(table.CountOf(EngineState::kReady), 1);
}

TEST_F(MembershipTest, AnEngineThatIdledLongDoesNotStallWithItsFirstRequest) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  for (int i = 0; i < 30; ++i) {
    now_ += absl::Seconds(1);
    ASSERT_TRUE(Beat("a", {.progress = 5}).ok());
  }
  now_ += absl::Seconds(1);
  ASSERT_TRUE(Beat("a", {.waiting_requests = 1, .progress = 5}).ok());
  EXPECT_EQ(StateOf("a"), EngineState::kReady);
}

TEST_F(MembershipTest, ADrainingEngineIsNeverCalledStalled) {
  options_.stall_timeout = absl::Seconds(1);
  Membership table(options_);
  ASSERT_TRUE(table.Register(EngineNamed("a", "i1", EngineState::kDraining), now_).ok());
  ASSERT_TRUE(table.Heartbeat("a", "i1", {.running_requests = 1}, now_).ok());
  ASSERT_TRUE(table.Heartbeat("a", "i1", {.running_requests = 1}, now_ + absl::Seconds(1)).ok());
  EXPECT_EQ(table.CountOf(EngineState::kDraining), 1);
}

TEST_F(MembershipTest, ForgivenLatenessPutsDeathsOff) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  table_.PostponeDeadlines(absl::Seconds(60));
  table_.Expire(now_ + absl::Seconds(61));
  EXPECT_THAT(table_.Snapshot(), SizeIs(1));
  table_.Expire(now_ + absl::Milliseconds(61500));
  EXPECT_THAT(table_.Snapshot(), IsEmpty());
}

// All processes stood still, the engine's and the broker's own.
TEST_F(MembershipTest, TimeInWhichTheBrokerStoodStillIsNoStall) {
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  const LoadReport working = {.running_requests = 1, .progress = 7};
  ASSERT_TRUE(table_.Heartbeat("a", "i1", working, now_).ok());
  table_.PostponeDeadlines(absl::Minutes(5));
  ASSERT_TRUE(table_.Heartbeat("a", "i1", working, now_ + absl::Minutes(5)).ok());
  EXPECT_NE(table_.Snapshot().front().info.state, EngineState::kStalled);
}

TEST_F(MembershipTest, TheTableIsBounded) {
  options_.max_engines = 2;
  Membership table(options_);
  ASSERT_TRUE(table.Register(EngineNamed("a"), now_).ok());
  ASSERT_TRUE(table.Register(EngineNamed("b"), now_).ok());
  EXPECT_EQ(table.Register(EngineNamed("c"), now_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table.Register(EngineNamed("b"), now_).ok());
}

TEST_F(MembershipTest, TheLargestArenaIsWelcome) {
  EngineInfo info = EngineNamed("a");
  info.kv.num_blocks = kMaxArenaBytes / info.kv.block_bytes;
  EXPECT_EQ(table_.Register(info, now_), absl::OkStatus());
}

TEST_F(MembershipTest, AnyNumberOfRequestsIsWork) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  ASSERT_TRUE(table_.Register(EngineNamed("a"), now_).ok());
  for (int i = 0; i <= 10; ++i, now_ += absl::Seconds(1)) {
    ASSERT_TRUE(Beat("a", {.running_requests = kMax, .waiting_requests = kMax}).ok());
  }
  EXPECT_EQ(StateOf("a"), EngineState::kStalled);
}

TEST_F(MembershipTest, WhatAnEngineSaysOfItselfIsChecked) {
  const auto expect_refused = [&](auto&& spoil, const char* part) {
    EngineInfo info = EngineNamed("a");
    spoil(info);
    const absl::Status status = table_.Register(info, now_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect_refused([](EngineInfo& i) { i.name = ""; }, "name ''");
  expect_refused([](EngineInfo& i) { i.name = "a\nb"; }, "a\\nb");
  expect_refused([](EngineInfo& i) { i.name = std::string(129, 'a'); }, "1 to 128");
  expect_refused([](EngineInfo& i) { i.model_name = "a b"; }, "model_name 'a b'");
  expect_refused([](EngineInfo& i) { i.instance_id = ""; }, "instance_id");
  expect_refused([](EngineInfo& i) { i.address = ""; }, "address");
  expect_refused([](EngineInfo& i) { i.state = EngineState::kStalled; }, "verdict");
  expect_refused([](EngineInfo& i) { i.kv.num_layers = 0; }, "kv.num_layers is 0");
  expect_refused([](EngineInfo& i) { i.kv.head_dim = -1; }, "kv.head_dim is -1");
  expect_refused([](EngineInfo& i) { i.kv.kv_cache_dtype = "int3"; }, "'int3', wanted bf16, f32 or int8");
  expect_refused([](EngineInfo& i) { i.kv.block_bytes += 1; }, "kv.block_bytes is 368641, wanted 368640");
  expect_refused([](EngineInfo& i) { i.kv.kv_cache_dtype = "int8"; }, "kv.block_bytes is 368640, wanted 195840 (2 x");
  expect_refused([](EngineInfo& i) { i.kv.num_layers = i.kv.head_dim = int64_t{1} << 40; }, "within 64 bits");
  expect_refused([](EngineInfo& i) { i.kv.num_blocks = 0; }, "kv.num_blocks is 0");
  expect_refused([](EngineInfo& i) { i.kv.num_blocks = int64_t{1} << 60; }, "kv.num_blocks is 1152921504606846976");
  expect_refused([](EngineInfo& i) { i.kv.num_blocks = kMaxArenaBytes / 368640 + 1; },
                 "wanted 0 to 3054198966 blocks of 368640 bytes: an arena has at most 1125899906842624;");
  const auto starts = [](EngineInfo& i) { i.state = EngineState::kStarting; };
  expect_refused([&](EngineInfo& i) { starts(i), i.kv.num_blocks = -1; }, "kv.num_blocks is -1, wanted 0 to");
  expect_refused([&](EngineInfo& i) { starts(i), i.kv.num_blocks = 0, i.kv.head_dim <<= 40, i.kv.block_bytes <<= 40; },
                 "kv.block_bytes is 405323966463344640, wanted at most 1125899906842624");
  expect_refused([](EngineInfo& i) { i.max_model_len_tokens = 0; }, "max_model_len_tokens");
  const auto shares = [](EngineInfo& i) { i.lease_channel = "/run/a", i.node_id = "node", i.page_bytes = 4096; };
  expect_refused([&](EngineInfo& i) { shares(i), i.lease_channel = "/run/\n"; }, "lease_channel '/run/\\n'");
  expect_refused([&](EngineInfo& i) { shares(i), i.lease_channel = std::string(108, 'a'); }, "at most 107");
  expect_refused([&](EngineInfo& i) { shares(i), i.node_id = ""; }, "node_id");
  expect_refused([&](EngineInfo& i) { shares(i), i.page_bytes = 0; }, "page_bytes is 0");
  expect_refused([&](EngineInfo& i) { shares(i), i.never_lent_blocks = -1; }, "never_lent_blocks is -1, wanted 0 to");
  expect_refused([&](EngineInfo& i) { shares(i), i.never_lent_blocks = i.kv.num_blocks + 1; }, "never_lent_blocks is");
  // Whatever its state is, and whether or not it shares: all watchers are told, and the log.
  expect_refused([](EngineInfo& i) { i.model_card_hash = std::string(129, 'a'); }, "model_card_hash");
  expect_refused([&](EngineInfo& i) { starts(i), i.address = "1:1\nforged"; }, "address '1:1\\nforged'");
  expect_refused([](EngineInfo& i) { i.node_id = std::string(129, 'a'); }, "node_id");
  expect_refused([](EngineInfo& i) { i.page_bytes = -1; }, "page_bytes is -1");
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  expect_refused([](EngineInfo& i) { i.never_lent_blocks = kMin; }, "never_lent_blocks is -9223372036854775808");
  EXPECT_THAT(table_.Snapshot(), IsEmpty());
}

}  // namespace
}  // namespace swiftcache::broker::membership
