// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/broker_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log/log.h"
#include "tests/engine/rpc/broker_client_fixture.h"

namespace swiftcache::engine::rpc {
namespace {

using ::testing::HasSubstr;

TEST(BrokerClientTest, AnEngineStartsServesDrainsAndLeaves) {
  Broker broker("inc-1");
  auto client = ClientOf(broker.server->address(), "i1");
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kExactly), "a");
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kStarting));
  client->Start();
  client->Ready("127.0.0.1:1", [] { return exec::EngineLoad{.running_requests = 3, .progress = 27}; });
  EXPECT_TRUE(broker.table->WaitUntil([](auto& engines) {
    return engines["a"].info.state == EngineState::kReady && engines["a"].info.address == "127.0.0.1:1" &&
           engines["a"].info.kv.num_blocks == 10 && engines["a"].load.progress == 27;
  }));
  client->Draining();
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kDraining));
  client->Leave();
  EXPECT_TRUE(broker.WaitForGone("a"));
}

TEST(BrokerClientTest, ARestartedBrokerKnowsTheEngineWithinTwoHeartbeats) {
  const fakes::HeldPort port;
  auto first = std::make_unique<Broker>("inc-1", port.address());
  const auto client = ReadyClient(port.address());
  ASSERT_TRUE(first->WaitForState("a", EngineState::kReady));
  first.reset();
  Broker second("inc-2", port.address());
  const absl::Time up = second.clock.Now();
  ASSERT_TRUE(second.WaitForState("a", EngineState::kReady));
  EXPECT_LE(second.clock.Now() - up, 2 * kHeartbeat + absl::Seconds(2)) << "of which the seconds are a busy machine's";
}

TEST(BrokerClientTest, ARestartedBrokerHearsForHowLongTheEngineHasStoodStill) {
  constexpr int64_t kStill = 500'000;
  const fakes::HeldPort port;
  auto first = std::make_unique<Broker>("inc-1", port.address());
  auto client = ClientOf(port.address(), "i1");
  ASSERT_TRUE(client->Reserve(Description("a"), NameChoice::kExactly).ok());
  client->Start();
  client->Ready("127.0.0.1:1", [] { return exec::EngineLoad{.running_requests = 1, .progress = 7}; });
  ASSERT_TRUE(first->table->WaitUntil([](auto& engines) { return engines["a"].load.still_micros >= kStill; }));
  first.reset();
  Broker second("inc-2", port.address());
  int64_t first_report = 0;
  ASSERT_TRUE(second.table->WaitUntil([&](auto& engines) {
    first_report = engines["a"].load.running_requests > 0 ? engines["a"].load.still_micros : 0;
    return engines["a"].load.running_requests > 0;
  }));
  EXPECT_GE(first_report, kStill);
  client->Leave();
}

TEST(BrokerClientTest, AnEngineThatWasThereBeforeTheBrokerRegistersWhenItComes) {
  const fakes::HeldPort port;
  const auto client = ReadyClient(port.address(), {}, kNobodyThere);
  Broker broker("inc-1", port.address());
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kReady));
}

v1::LeaseLimit LimitOf(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                       int64_t set_at_micros) {
  v1::LeaseLimit limit;
  limit.set_model_name(model_name);
  if (max_borrowed_bytes) limit.set_max_borrowed_bytes(*max_borrowed_bytes);
  limit.set_set_at_micros(set_at_micros);
  return limit;
}

TEST(BrokerClientTest, ALimitThatItHasHeardOfGoesToTheNextBroker) {
  const fakes::HeldPort port;
  auto broker = std::make_unique<Broker>("inc-1", port.address());
  const auto client = ReadyClient(port.address());
  client->KeepLimit(LimitOf("chat", 7, 9));
  client->KeepLimit(LimitOf("chat", 5, 8));  // an older word
  client->KeepLimit(LimitOf("code", std::nullopt, 3));
  broker.reset();
  Broker next("inc-2", port.address());
  ASSERT_TRUE(next.WaitForState("a", EngineState::kReady));
  using broker::ledger::LeaseLimit;
  EXPECT_TRUE(next.table->WaitForLimits({LeaseLimit{"chat", 7, 9}, LeaseLimit{"code", std::nullopt, 3}}));
}

TEST(BrokerClientTest, ItsOwnLimitsGoToTheNextBrokerWithTheFirstWord) {
  const fakes::HeldPort port;
  auto broker = std::make_unique<Broker>("inc-1", port.address());
  const auto client = ReadyClient(port.address(), {.lease_channel = "/run/a",
                                                   .node_id = "node",
                                                   .page_bytes = 4096,
                                                   .never_lent_blocks = 7,
                                                   .borrows = true,
                                                   .given = [] { return std::vector<lease::Lease>(); },
                                                   .registered = [](const coordinator::LeaseTerms&) {}});
  const auto knows = [](auto& engines) {
    return engines["a"].info.never_lent_blocks == 7 && engines["a"].info.borrows;
  };
  EXPECT_TRUE(broker->table->WaitUntil(knows));
  broker.reset();
  Broker next("inc-2", port.address());
  EXPECT_TRUE(next.table->WaitUntil(knows));
}

TEST(BrokerClientTest, HeartbeatsSayWhatSharingWasWorth) {
  Broker broker("inc-1");
  auto client = ClientOf(broker.server->address(), "i1");
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kExactly), "a");
  client->Start();
  lease::Account account{.leases = 3, .bytes = 4096, .byte_micros = 2'500'000};
  account.of(lease::Ending::kNeed).fenced = 1;
  account.of(lease::Ending::kBroker).released = 2;
  client->Ready("127.0.0.1:1",
                [] {
                  return exec::EngineLoad{.sharing = {7, 8, 9}};
                },
                {.accounts = [&] {
                  return std::map<std::string, lease::Account>{{"chat", account}};
                }});
  const std::vector<broker::membership::LeaseAccount> told = {
      {.borrower_model = "chat",
       .lent_bytes = 4096,
       .lent_byte_seconds = 2,
       .leases = 3,
       .ended = {{.reason = "need", .fenced = 1}, {.reason = "broker", .released = 2}}}};
  EXPECT_TRUE(broker.table->WaitUntil([&](auto& engines) {
    const broker::membership::LoadReport& load = engines["a"].load;
    return load.saved_tokens == 7 && load.again_for_loans_tokens == 8 && load.again_for_losses_tokens == 9 &&
           load.accounts == told;
  }));
  client->Leave();
}

TEST(BrokerClientTest, WhatHeartbeatsSayOfBorrowersWeightsIsToldWhenItChanges) {
  class Door final : public v1::BrokerService::Service {
   public:
    grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest*, v1::RegisterResponse* response) override {
      response->set_incarnation("inc-1");
      response->mutable_heartbeat_interval()->set_nanos(1'000'000);
      return grpc::Status::OK;
    }
    grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                           v1::HeartbeatResponse* response) override {
      response->set_incarnation("inc-1");
      v1::HeartbeatResponse::BorrowerWeight& weight = *response->add_weights();
      weight.set_instance_id("chat-1");
      weight.set_weight(++heartbeats_ / 100);
      return grpc::Status::OK;
    }

   private:
    std::atomic<int64_t> heartbeats_ = 0;
  } door;
  auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&door});
  ASSERT_TRUE(server.ok()) << server.status();
  auto client = ClientOf((*server)->address(), "i1");
  ASSERT_TRUE(client->Reserve(Description("a"), NameChoice::kExactly).ok());
  CallLog told;
  client->Ready("127.0.0.1:1", [] { return exec::EngineLoad(); },
                {.given = [] { return std::vector<lease::Lease>(); },
                 .registered = [](const coordinator::LeaseTerms&) {},
                 .weighted =
                     [&](const std::map<std::string, int64_t>& weights) {
                       for (const auto& [borrower, weight] : weights) told.Add(absl::StrCat(borrower, " ", weight));
                     }});
  client->Start();
  ASSERT_TRUE(told.WaitFor("chat-1 2"));
  client->Leave();
  for (const int64_t weight : {0, 1, 2}) EXPECT_EQ(told.Count(absl::StrCat("chat-1 ", weight)), 1);
}

// A registration that nobody answered may have been heard all the same.
TEST(BrokerClientTest, ALeaveIsToldAfterARegistrationThatWasNotAnswered) {
  class Door final : public v1::BrokerService::Service {
   public:
    grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                          v1::RegisterResponse* response) override {
      response->set_incarnation("inc-1");
      if (request->engine().state() != v1::DRAINING) return grpc::Status::OK;
      calls.Add("draining");
      return {grpc::StatusCode::UNAVAILABLE, "lost on its way"};
    }
    grpc::Status Deregister(grpc::ServerContext*, const v1::DeregisterRequest*, v1::DeregisterResponse*) override {
      calls.Add("left");
      return grpc::Status::OK;
    }
    CallLog calls;
  } door;
  auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&door});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = ReadyClient((*server)->address());
  client->Draining();
  ASSERT_TRUE(door.calls.WaitFor("draining"));
  client->Leave();
  EXPECT_EQ(door.calls.Count("left"), 1);
}

class Lines final : public google::LogSink {
 public:
  Lines() { google::AddLogSink(this); }
  ~Lines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t length) override {
    if (severity == google::GLOG_ERROR) errors.emplace_back(message, length);
  }
  std::vector<std::string> errors;
};

TEST(BrokerClientTest, TwoBrokersThatAnswerInTurnsAreOneLoudLine) {
  Lines lines;
  auto client = ClientOf("127.0.0.1:1", "i1");
  for (const char* incarnation : {"a", "a", "b", "b", "c"}) client->NoteIncarnation(incarnation);
  EXPECT_TRUE(lines.errors.empty()) << "a broker that restarts";
  for (const char* incarnation : {"b", "c", "b", "c", "a"}) client->NoteIncarnation(incarnation);
  ASSERT_EQ(lines.errors.size(), 1);
  EXPECT_THAT(lines.errors[0], HasSubstr("two brokers answer at 127.0.0.1:1"));
  EXPECT_THAT(lines.errors[0], HasSubstr("incarnations b and c"));
}

}  // namespace
}  // namespace swiftcache::engine::rpc
