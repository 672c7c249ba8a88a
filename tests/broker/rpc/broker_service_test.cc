// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/broker_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "broker/rpc/proto_convert.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "tests/broker/engines.h"

namespace swiftcache::broker::rpc {
namespace {

using ::testing::HasSubstr;

v1::RegisterRequest RegisterRequestFor(const membership::EngineInfo& info) {
  v1::RegisterRequest request;
  *request.mutable_engine() = ToProto(membership::EngineStatus{.info = info, .load = {}}).info();
  return request;
}

class BrokerDoorTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void TearDown() override { StopBroker(); }

  void Start(const DoorOptions& door_options) {
    loop::Options options{.membership = {.heartbeat_interval = absl::Milliseconds(750), .heartbeat_misses = 100},
                          .incarnation = "inc-1"};
    auto loop = loop::BrokerLoop::Create(options, clock_, metrics_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    door_ = std::make_unique<BrokerDoor>(*loop_, door_options);
    auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {door_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::BrokerService::NewStub(CreateRpcChannel(server_->address(), {}));
  }
  void StopBroker() {
    if (loop_ != nullptr) loop_->Stop();
    server_.reset();
  }
  absl::Status Register(const membership::EngineInfo& info) {
    grpc::ClientContext context;
    return FromGrpc(stub_->Register(&context, RegisterRequestFor(info), &registered_));
  }
  absl::Status Heartbeat(const std::string& name, int64_t steps_total) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_name(name);
    request.set_instance_id("i1");
    request.set_incarnation("inc-1");
    request.mutable_load()->set_steps_total(steps_total);
    request.mutable_load()->set_progress(10 * steps_total);
    v1::HeartbeatResponse response;
    return FromGrpc(stub_->Heartbeat(&context, request, &response));
  }

  // The loop sets gauges after it has answered.
  void WaitForMetric(const std::string& line) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (metrics_.Serialize().find(line) == std::string::npos) {
      ASSERT_LT(absl::Now(), deadline) << line;
      std::this_thread::yield();
    }
  }

  RealClock clock_;
  Metrics metrics_;
  std::unique_ptr<loop::BrokerLoop> loop_;
  std::unique_ptr<BrokerDoor> door_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::BrokerService::Stub> stub_;
  v1::RegisterResponse registered_;
};

TEST_F(BrokerDoorTest, RegisterTellsIncarnationAndHeartbeatInterval) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  EXPECT_EQ(registered_.incarnation(), "inc-1");
  EXPECT_EQ(registered_.heartbeat_interval().seconds(), 0);
  EXPECT_EQ(registered_.heartbeat_interval().nanos(), 750'000'000);
  EXPECT_TRUE(Heartbeat("a", 1).ok());
  EXPECT_EQ(Heartbeat("b", 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(BrokerDoorTest, ATakenNameComesWithRetryInfo) {
  ASSERT_TRUE(Register(EngineNamed("a", "i1")).ok());
  const absl::Status status = Register(EngineNamed("a", "i2"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(RetryDelayOf(status).has_value());
  EXPECT_GT(*RetryDelayOf(status), absl::Seconds(60));
  EXPECT_LE(*RetryDelayOf(status), absl::Seconds(75));
}

TEST_F(BrokerDoorTest, BadGeometryIsInvalidArgument) {
  membership::EngineInfo info = EngineNamed("a");
  info.kv.block_bytes = 7;
  const absl::Status status = Register(info);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kv.block_bytes is 7"));
}

TEST_F(BrokerDoorTest, EveryFieldOfAnEngineSurvivesTheWay) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_EQ(response.snapshot().engines_size(), 1);
  EXPECT_EQ(FromProto(response.snapshot().engines(0).info()), EngineNamed("a"));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(BrokerDoorTest, WatchSendsASnapshotThenEveryChangeWithoutAGap) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_snapshot());
  EXPECT_EQ(response.snapshot().engines_size(), 0);
  int64_t version = response.version();

  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  for (int i = 1; i <= 50; ++i) ASSERT_TRUE(Heartbeat("a", i).ok());
  grpc::ClientContext deregister_context;
  v1::DeregisterRequest request;
  request.set_name("a");
  request.set_instance_id("i1");
  v1::DeregisterResponse gone;
  ASSERT_TRUE(stub_->Deregister(&deregister_context, request, &gone).ok());

  for (int i = 0; i <= 50; ++i) {
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.version(), ++version);
    EXPECT_EQ(response.updated().load().steps_total(), i);
    EXPECT_EQ(response.updated().load().progress(), 10 * i);
  }
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.version(), ++version);
  EXPECT_EQ(response.removed(), "a");
  EXPECT_FALSE(response.removed_died());
  context.TryCancel();
}

TEST_F(BrokerDoorTest, AReaderThatIsTooSlowIsToldAndTheOthersGoOn) {
  StopBroker();
  Start({.max_pending_watch_events = 4});
  grpc::ClientContext slow_context;
  auto slow = stub_->Watch(&slow_context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(slow->Read(&response));

  // Enough to fill the windows of HTTP/2 and the queue behind them.
  membership::EngineInfo info = EngineNamed("a");
  info.model_card_hash = std::string(60'000, 'x');
  int64_t sent = 0;
  while (metrics_.Serialize().find("watchers_dropped_total 1") == std::string::npos) {
    info.max_model_len_tokens = ++sent;
    ASSERT_TRUE(Register(info).ok());
    ASSERT_LT(sent, 5000) << "the slow reader was never dropped";
  }
  int64_t version = response.version();
  while (slow->Read(&response)) EXPECT_EQ(response.version(), ++version);
  EXPECT_LT(version, sent);
  EXPECT_EQ(slow->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  grpc::ClientContext again_context;
  auto again = stub_->Watch(&again_context, v1::WatchRequest());
  ASSERT_TRUE(again->Read(&response));
  EXPECT_EQ(response.snapshot().engines(0).info().max_model_len_tokens(), sent);
  again_context.TryCancel();
}

TEST_F(BrokerDoorTest, StoppingEndsStreamsWithUnavailable) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  StopBroker();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(BrokerDoorTest, AWatcherThatLeavesIsForgotten) {
  {
    grpc::ClientContext context;
    auto reader = stub_->Watch(&context, v1::WatchRequest());
    v1::WatchResponse response;
    ASSERT_TRUE(reader->Read(&response));
    WaitForMetric("swiftcache_broker_watchers 1");
    context.TryCancel();
    reader->Finish();
  }
  WaitForMetric("swiftcache_broker_watchers 0");
}

}  // namespace
}  // namespace swiftcache::broker::rpc
