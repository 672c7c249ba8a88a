// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/broker_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "broker/rpc/broker_service.h"
#include "common/base/instance_token.h"
#include "common/log/log.h"
#include "common/rpc/server.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::rpc {
namespace {

namespace ledger = broker::ledger;
using broker::loop::BrokerLoop;
using broker::loop::WatchEvent;
using broker::membership::EngineState;
using broker::membership::EngineStatus;
using ::testing::HasSubstr;
using NameChoice = BrokerClient::NameChoice;

constexpr absl::Duration kHeartbeat = absl::Milliseconds(100);

// Follows a broker's table from inside the process.
class Table final : public broker::loop::Watcher {
 public:
  const std::string& name() const override { return name_; }
  const std::string& instance_id() const override { return everything_; }
  bool Offer(const WatchEvent& event) override {
    absl::MutexLock lock(&mutex_);
    if (const auto* snapshot = std::get_if<WatchEvent::Snapshot>(&event.what)) {
      for (const EngineStatus& status : snapshot->engines) engines_[status.info.name] = status;
    } else if (const auto* updated = std::get_if<EngineStatus>(&event.what)) {
      engines_[updated->info.name] = *updated;
    } else if (const auto* limit = std::get_if<broker::ledger::LeaseLimit>(&event.what)) {
      limits_.push_back(*limit);
    } else if (const auto* lease = std::get_if<broker::ledger::Lease>(&event.what)) {
      leases_.Add(absl::StrCat(ledger::StateName(lease->state), " ", lease->donor.name, " ", lease->id.value()));
    } else if (const auto* gone = std::get_if<WatchEvent::EngineRemoved>(&event.what)) {
      engines_.erase(gone->name);
    }
    return true;
  }
  void Close(absl::Status) override {}
  const CallLog& leases() const { return leases_; }
  template <typename Predicate>
  bool WaitUntil(Predicate predicate) {
    absl::MutexLock lock(&mutex_);
    const auto holds = [&] { return predicate(engines_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), absl::Seconds(30));
  }
  bool WaitForLimits(const std::vector<broker::ledger::LeaseLimit>& limits) {
    absl::MutexLock lock(&mutex_);
    const auto told = [&] { return limits_ == limits; };
    return mutex_.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(30));
  }

 private:
  const std::string name_ = "test", everything_;
  absl::Mutex mutex_;
  std::map<std::string, EngineStatus> engines_;
  std::vector<broker::ledger::LeaseLimit> limits_;
  CallLog leases_;
};

// A whole broker in this process.
struct Broker {
  explicit Broker(const std::string& incarnation, const std::string& listen = "127.0.0.1:0") {
    broker::loop::Options options{.membership = {.heartbeat_interval = kHeartbeat}, .incarnation = incarnation};
    options.new_capability = [] { return "capability"; };
    loop = *BrokerLoop::Create(options, clock, metrics);
    door = std::make_unique<broker::rpc::BrokerDoor>(*loop, broker::rpc::DoorOptions());
    auto created = RpcServer::Create({.listen = listen}, {door.get()});
    if (!created.ok()) ADD_FAILURE() << created.status();
    server = *std::move(created);
    loop->Watch(table);
  }
  ~Broker() {
    loop->Stop();
    server->Stop(clock.Now());
  }
  bool WaitForState(const std::string& name, EngineState state) {
    return table->WaitUntil([&](auto& engines) { return engines.contains(name) && engines[name].info.state == state; });
  }
  bool WaitForGone(const std::string& name) {
    return table->WaitUntil([&](auto& engines) { return !engines.contains(name); });
  }

  RealClock clock;
  Metrics metrics;
  std::shared_ptr<Table> table = std::make_shared<Table>();
  std::unique_ptr<BrokerLoop> loop;
  std::unique_ptr<broker::rpc::BrokerDoor> door;
  std::unique_ptr<RpcServer> server;
};

EngineDescription Description(const std::string& name) {
  return {
      .name = name,
      .model_name = "model",
      .kv = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 8, .block_tokens = 16, .dtype = backend::KvDtype::kBf16},
      .num_blocks = 10,
      .max_model_len_tokens = 128,
      .model_card_hash = "cafe"};
}

std::unique_ptr<BrokerClient> ClientOf(const std::string& broker, const std::string& token) {
  return BrokerClient::Create({.broker = broker,
                               .instance_id = InstanceIdOf(token),
                               .token = token,
                               .max_reconnect_backoff = absl::Milliseconds(50)});
}

exec::EngineLoad NoLoad() { return {}; }

// It has the name "a", and is ready.
std::unique_ptr<BrokerClient> ReadyClient(const std::string& broker, const SharingDescription& sharing = {}) {
  auto client = ClientOf(broker, "i1");
  EXPECT_EQ(client->Reserve(Description("a"), NameChoice::kExactly).value_or("none"), "a");
  client->Start();
  client->Ready("127.0.0.1:1", NoLoad, sharing);
  return client;
}

TEST(BrokerClientTest, AnEngineStartsServesDrainsAndLeaves) {
  Broker broker("inc-1");
  auto client = ClientOf(broker.server->address(), "i1");
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kExactly), "a");
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kStarting));
  client->Start();
  client->Ready("127.0.0.1:1",
                [] { return exec::EngineLoad{.running_requests = 3, .steps_total = 9, .progress = 27}; });
  EXPECT_TRUE(broker.table->WaitUntil([](auto& engines) {
    return engines["a"].info.state == EngineState::kReady && engines["a"].info.address == "127.0.0.1:1" &&
           engines["a"].info.kv.num_blocks == 10 && engines["a"].load.steps_total == 9 &&
           engines["a"].load.progress == 27;
  }));
  client->Draining();
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kDraining));
  client->Leave();
  EXPECT_TRUE(broker.WaitForGone("a"));
}

TEST(BrokerClientTest, ANameHeldByALiveEngineIsRefusedWithTheBrokersMessage) {
  Broker broker("inc-1");
  auto holder = ClientOf(broker.server->address(), "i1");
  ASSERT_TRUE(holder->Reserve(Description("a"), NameChoice::kExactly).ok());
  holder->Start();
  auto second = ClientOf(broker.server->address(), "i2");
  const absl::Status status = second->Reserve(Description("a"), NameChoice::kExactly).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("held by live instance " + InstanceIdOf("i1")));
}

TEST(BrokerClientTest, ANameWithoutAWishGetsASuffix) {
  Broker broker("inc-1");
  std::vector<std::unique_ptr<BrokerClient>> clients;
  for (const char* wanted : {"a", "a-2", "a-3"}) {
    clients.push_back(ClientOf(broker.server->address(), absl::StrCat("i", clients.size())));
    EXPECT_EQ(*clients.back()->Reserve(Description("a"), NameChoice::kWithSuffix), wanted);
    clients.back()->Start();
  }
}

// By an engine of which the broker knows nothing.
TEST(BrokerClientTest, ANameThatIsHeldElsewhereIsExchangedForTheNext) {
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

TEST(BrokerClientTest, ARestartedEngineWaitsForItsKilledPredecessorToBeCalledDead) {
  Broker broker("inc-1");
  auto killed = ClientOf(broker.server->address(), "i1");
  ASSERT_TRUE(killed->Reserve(Description("a"), NameChoice::kExactly).ok());  // and never speaks again
  auto restarted = ClientOf(broker.server->address(), "i2");
  absl::StatusOr<std::string> name = restarted->Reserve(Description("a"), NameChoice::kExactly);
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(*name, "a");
}

TEST(BrokerClientTest, ARestartedBrokerKnowsTheEngineWithinTwoHeartbeats) {
  auto first = std::make_unique<Broker>("inc-1");
  const std::string address = first->server->address();
  const auto client = ReadyClient(address);
  ASSERT_TRUE(first->WaitForState("a", EngineState::kReady));
  first.reset();
  Broker second("inc-2", address);
  const absl::Time up = second.clock.Now();
  ASSERT_TRUE(second.WaitForState("a", EngineState::kReady));
  EXPECT_LE(second.clock.Now() - up, 2 * kHeartbeat + absl::Seconds(2)) << "of which the seconds are a busy machine's";
}

TEST(BrokerClientTest, ARestartedBrokerHearsForHowLongTheEngineHasStoodStill) {
  constexpr int64_t kStill = 500'000;
  auto first = std::make_unique<Broker>("inc-1");
  const std::string address = first->server->address();
  auto client = ClientOf(address, "i1");
  ASSERT_TRUE(client->Reserve(Description("a"), NameChoice::kExactly).ok());
  client->Start();
  client->Ready("127.0.0.1:1", [] { return exec::EngineLoad{.running_requests = 1, .progress = 7}; });
  ASSERT_TRUE(first->table->WaitUntil([](auto& engines) { return engines["a"].load.still_micros >= kStill; }));
  first.reset();
  Broker second("inc-2", address);
  int64_t first_report = 0;
  ASSERT_TRUE(second.table->WaitUntil([&](auto& engines) {
    first_report = engines["a"].load.running_requests > 0 ? engines["a"].load.still_micros : 0;
    return engines["a"].load.running_requests > 0;
  }));
  EXPECT_GE(first_report, kStill);
  client->Leave();
}

TEST(BrokerClientTest, AnEngineThatWasThereBeforeTheBrokerRegistersWhenItComes) {
  std::string address;
  { address = Broker("inc-0").server->address(); }
  const auto client = ReadyClient(address);
  Broker broker("inc-1", address);
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kReady));
}

TEST(BrokerClientTest, AClashFoundLateIsSolvedByTheNextName) {
  std::string address;
  { address = Broker("inc-0").server->address(); }
  std::vector<std::unique_ptr<BrokerClient>> clients;
  for (const char* instance : {"i1", "i2"}) {
    clients.push_back(ClientOf(address, instance));
    EXPECT_EQ(*clients.back()->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
    clients.back()->Start();
    clients.back()->Ready("127.0.0.1:1", NoLoad);
  }
  Broker broker("inc-1", address);
  EXPECT_TRUE(broker.WaitForState("a", EngineState::kReady));
  EXPECT_TRUE(broker.WaitForState("a-2", EngineState::kReady));
}

// The broker did not see it for a while, and another engine of its model came and took its name.
TEST(BrokerClientTest, WhoHasToTakeAnotherNameKeepsWhatItLends) {
  std::string address;
  { address = Broker("inc-0").server->address(); }
  auto away = ClientOf(address, "i2");
  EXPECT_EQ(*away->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
  Broker broker("inc-1", address);
  const auto taker = ReadyClient(address);
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

TEST(BrokerClientTest, ADescriptionTheBrokerRefusesIsAnErrorAtTheStart) {
  Broker broker("inc-1");
  auto client = ClientOf(broker.server->address(), "i1");
  EXPECT_EQ(client->Reserve(Description("a b"), NameChoice::kExactly).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(BrokerClientTest, WithoutABrokerThereAreOtherNamesToo) {
  auto client = BrokerClient::Create({.broker = "", .instance_id = "i1"});
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kWithSuffix), "a");
  EXPECT_EQ(client->TakeNextName(), "a-2");
  EXPECT_EQ(client->TakeNextName(), "a-3");
}

TEST(BrokerClientTest, WithoutABrokerTheNameIsFree) {
  auto client = BrokerClient::Create({.broker = "", .instance_id = "i1"});
  EXPECT_EQ(*client->Reserve(Description("a"), NameChoice::kExactly), "a");
  client->Start();
  client->Ready("127.0.0.1:1", NoLoad);
  client->Draining();
  client->Leave();
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
  auto broker = std::make_unique<Broker>("inc-1");
  const std::string address = broker->server->address();
  const auto client = ReadyClient(address);
  client->KeepLimit(LimitOf("chat", 7, 9));
  client->KeepLimit(LimitOf("chat", 5, 8));  // an older word
  client->KeepLimit(LimitOf("code", std::nullopt, 3));
  broker.reset();
  Broker next("inc-2", address);
  ASSERT_TRUE(next.WaitForState("a", EngineState::kReady));
  using broker::ledger::LeaseLimit;
  EXPECT_TRUE(next.table->WaitForLimits({LeaseLimit{"chat", 7, 9}, LeaseLimit{"code", std::nullopt, 3}}));
}

TEST(BrokerClientTest, ItsOwnLimitsGoToTheNextBrokerWithTheFirstWord) {
  auto broker = std::make_unique<Broker>("inc-1");
  const std::string address = broker->server->address();
  const auto client = ReadyClient(address, {.lease_channel = "/run/a",
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
  Broker next("inc-2", address);
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
