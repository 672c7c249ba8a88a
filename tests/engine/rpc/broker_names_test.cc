// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <utility>

#include "common/rpc/status.h"
#include "tests/engine/rpc/broker_client_fixture.h"

namespace swiftcache::engine::rpc {
namespace {

using ::testing::HasSubstr;

TEST(BrokerNamesTest, ANameHeldByALiveEngineIsRefusedWithTheBrokersMessage) {
  Broker broker("inc-1");
  auto holder = ClientOf(broker.server->address(), "i1");
  ASSERT_TRUE(holder->Reserve(Description("a"), NameChoice::kExactly).ok());
  holder->Start();
  auto second = ClientOf(broker.server->address(), "i2");
  const absl::Status status = second->Reserve(Description("a"), NameChoice::kExactly).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("held by live instance " + InstanceIdOf("i1")));
}

TEST(BrokerNamesTest, ANameWithoutAWishGetsASuffix) {
  Broker broker("inc-1");
  std::vector<std::unique_ptr<BrokerClient>> clients;
  for (const char* wanted : {"a", "a-2", "a-3"}) {
    clients.push_back(ClientOf(broker.server->address(), absl::StrCat("i", clients.size())));
    EXPECT_EQ(*clients.back()->Reserve(Description("a"), NameChoice::kWithSuffix), wanted);
    clients.back()->Start();
  }
}

// By an engine of which the broker knows nothing.
TEST(BrokerNamesTest, ANameThatIsHeldElsewhereIsExchangedForTheNext) {
  Broker broker("inc-1");
  std::vector<std::unique_ptr<BrokerClient>> clients;
  for (const NameChoice choice : {NameChoice::kWithSuffix, NameChoice::kExactly}) {
    clients.push_back(ClientOf(broker.server->address(), absl::StrCat("i", clients.size())));
    ASSERT_TRUE(clients.back()->Reserve(Description(absl::StrCat("e", clients.size())), choice).ok());
    clients.back()->Start();
  }
  EXPECT_EQ(clients[0]->TakeNextName(), "e1-2");
  EXPECT_TRUE(broker.WaitForState("e1-2", EngineState::kStarting));
  EXPECT_TRUE(broker.WaitForGone("e1"));
  EXPECT_EQ(clients[1]->TakeNextName(), std::nullopt) << "it is to be called so and not otherwise";
}

TEST(BrokerNamesTest, ARestartedEngineWaitsForItsKilledPredecessorToBeCalledDead) {
  Broker broker("inc-1");
  auto killed = ClientOf(broker.server->address(), "i1");
  ASSERT_TRUE(killed->Reserve(Description("a"), NameChoice::kExactly).ok());  // and never speaks again
  auto restarted = ClientOf(broker.server->address(), "i2");
  absl::StatusOr<std::string> name = restarted->Reserve(Description("a"), NameChoice::kExactly);
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(*name, "a");
}

// As one that stands still itself, and puts the death of the holder off.
class LateBroker final : public v1::BrokerService::CallbackService {
 public:
  explicit LateBroker(int refusals) : refusals_(refusals) {}
  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest*,
                                     v1::RegisterResponse*) override {
    absl::Status status;
    if (refusals_-- > 0) status = WithRetryDelay(absl::AlreadyExistsError("held"), absl::Milliseconds(10));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

 private:
  std::atomic<int> refusals_;
};

TEST(BrokerNamesTest, ABrokerMayCallThePredecessorDeadLaterThanItSaid) {
  for (const auto& [refusals, ok] : {std::pair(2, true), {3, false}}) {
    LateBroker late(refusals);
    auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&late});
    ASSERT_TRUE(server.ok()) << server.status();
    const auto restarted = ClientOf((*server)->address(), "i2");
    EXPECT_EQ(restarted->Reserve(Description("a"), NameChoice::kExactly).ok(), ok) << refusals;
  }
}

// Until then it may find that an engine of this machine has the name, which would lose it to this one at the broker.
TEST(BrokerNamesTest, ABrokerThatComesLateHearsNoNameBeforeTheEngineIsReady) {
  const fakes::HeldPort port;
  const auto starting = ClientOf(port.address(), "i1", kNobodyThere);
  EXPECT_EQ(*starting->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
  starting->Start();
  Broker broker("inc-1", port.address());
  absl::SleepFor(absl::Seconds(1));
  const auto holder = ClientOf(port.address(), "i2");
  EXPECT_EQ(*holder->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
  holder->Start();
  starting->Ready("127.0.0.1:1", NoLoad);
  EXPECT_TRUE(broker.WaitForState("a-2", EngineState::kReady));
}

TEST(BrokerNamesTest, AClashFoundLateIsSolvedByTheNextName) {
  const fakes::HeldPort port;
  std::vector<std::unique_ptr<BrokerClient>> clients;
  for (const char* instance : {"i1", "i2"}) {
    clients.push_back(ClientOf(port.address(), instance, kNobodyThere));
    EXPECT_EQ(*clients.back()->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
    clients.back()->Start();
    clients.back()->Ready("127.0.0.1:1", NoLoad);
  }
  Broker broker("inc-1", port.address());
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kReady));
  EXPECT_TRUE(broker.WaitForState("a-2", EngineState::kReady));
}

// The broker did not see it for a while, and another engine of its model came and took its name.
TEST(BrokerNamesTest, WhoHasToTakeAnotherNameKeepsWhatItLends) {
  const fakes::HeldPort port;
  auto away = ClientOf(port.address(), "i2", kNobodyThere);
  EXPECT_EQ(*away->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
  Broker broker("inc-1", port.address());
  const auto taker = ReadyClient(port.address());
  ASSERT_TRUE(broker.WaitForState("a", EngineState::kReady));
  const int64_t block_bytes = Description("a").kv.block_bytes();
  const lease::Lease lent = {.id = kv::LeaseId(7),
                             .donor = "a",
                             .donor_instance = InstanceIdOf("i2"),
                             .borrower = "chat",
                             .borrower_instance = InstanceIdOf("i3"),
                             .borrower_model = "chat",
                             .extent = {.first_block = 8, .num_blocks = 1},
                             .num_bytes = block_bytes,
                             .borrower_blocks = 1,
                             .epoch = kv::Epoch(1),
                             .state = lease::State::kGranted,
                             .channel = "/run/a",
                             .capability = "secret"};
  away->Start();
  away->Ready("127.0.0.1:1", NoLoad, {.lease_channel = "/run/a", .node_id = "node", .page_bytes = 1, .given = [&] {
                                        return std::vector<lease::Lease>{lent};
                                      }});
  EXPECT_TRUE(broker.WaitForState("a-2", EngineState::kReady));
  EXPECT_TRUE(broker.table->leases().WaitFor("granted a-2 7"));
  away->Leave();
}

TEST(BrokerNamesTest, ADescriptionTheBrokerRefusesIsAnErrorAtTheStart) {
  Broker broker("inc-1");
  auto client = ClientOf(broker.server->address(), "i1");
  EXPECT_EQ(client->Reserve(Description("a b"), NameChoice::kExactly).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(BrokerNamesTest, WithoutABrokerThereAreOtherNamesToo) {
  auto client = BrokerClient::Create({.broker = "", .instance_id = "i1"});
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
  EXPECT_EQ(client->TakeNextName(), "a-2");
  EXPECT_EQ(client->TakeNextName(), "a-3");
}

TEST(BrokerNamesTest, WithoutABrokerTheNameIsFree) {
  auto client = BrokerClient::Create({.broker = "", .instance_id = "i1"});
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kExactly), "a");
  client->Start();
  client->Ready("127.0.0.1:1", NoLoad);
  client->Draining();
  client->Leave();
}

}  // namespace
}  // namespace swiftcache::engine::rpc
