// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/broker_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "broker/rpc/proto_convert.h"
#include "common/base/instance_token.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "tests/broker/engines.h"

namespace swiftcache::broker::rpc {
namespace {

using ::testing::HasSubstr;

// `token`: the instance's, which the engine gets.
v1::RegisterRequest RegisterRequestFor(membership::EngineInfo info, const std::string& token = "t1") {
  v1::RegisterRequest request;
  request.set_token(token);
  info.instance_id = InstanceIdOf(token);
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
    options.new_capability = [] { return "sixteen bytes..."; };
    options.ledger.elastic.headroom_percent = 0;
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
  absl::Status Register(const membership::EngineInfo& info, const std::string& token = "t1") {
    grpc::ClientContext context;
    return FromGrpc(stub_->Register(&context, RegisterRequestFor(info, token), &registered_));
  }
  absl::Status Heartbeat(const std::string& name, int64_t steps_total) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_name(name);
    request.set_instance_id(InstanceIdOf("t1"));
    request.set_token("t1");
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
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  const absl::Status status = Register(EngineNamed("a"), "t2");
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
  membership::EngineInfo info = EngineNamed("a", InstanceIdOf("t1"));
  info.lease_channel = "/run/a";
  info.node_id = "node";
  info.page_bytes = 4096;
  ASSERT_TRUE(Register(info).ok());
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_EQ(response.snapshot().engines_size(), 1);
  EXPECT_EQ(FromProto(response.snapshot().engines(0).info()), info);
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
  request.set_instance_id(InstanceIdOf("t1"));
  request.set_token("t1");
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

// Leases.

class BrokerDoorLeaseTest : public BrokerDoorTest {
 protected:
  void SetUp() override {
    BrokerDoorTest::SetUp();
    for (const char* name : {"chat", "code"}) {
      ASSERT_TRUE(Register(Sharing(name), TokenOf(name)).ok());
      v1::ReportWindowRequest window = From<v1::ReportWindowRequest>(name);
      window.set_used_blocks(20);
      v1::ReportWindowResponse response;
      ASSERT_TRUE(Call(&v1::BrokerService::Stub::ReportWindow, window, &response).ok());
      EXPECT_EQ(response.lendable_blocks(), 80);
    }
  }
  static std::string TokenOf(const std::string& name) { return "token of " + name; }
  static std::string IdOf(const std::string& name) { return InstanceIdOf(TokenOf(name)); }
  static membership::EngineInfo Sharing(const std::string& name) {
    membership::EngineInfo info = EngineNamed(name);
    info.lease_channel = "/run/swiftcache/" + name + ".sock";
    info.node_id = "node-1";
    info.page_bytes = 4096;
    return info;
  }
  template <typename Request>
  static Request From(const std::string& name) {
    Request request;
    request.set_name(name);
    request.set_instance_id(IdOf(name));
    request.set_token(TokenOf(name));
    request.set_incarnation("inc-1");
    return request;
  }
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    return FromGrpc(((*stub_).*method)(&context, request, response));
  }
  v1::RequestLeaseRequest WantBlocks(int64_t blocks, const std::string& key = "k1") {
    auto request = From<v1::RequestLeaseRequest>("chat");
    request.set_request_key(key);
    request.set_want_bytes(blocks * 368'640);
    return request;
  }
  v1::Lease Offered(int64_t blocks) {
    v1::RequestLeaseResponse response;
    EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(blocks), &response), absl::OkStatus());
    EXPECT_EQ(response.leases_size(), 1) << response.shortage();
    return response.leases_size() > 0 ? response.leases(0) : v1::Lease();
  }
  absl::Status Report(const std::string& name, int64_t lease_id, v1::LeaseReport report, uint64_t epoch = 9) {
    auto request = From<v1::ReportLeaseRequest>(name);
    request.set_lease_id(lease_id);
    request.set_report(report);
    request.set_epoch(epoch);
    v1::ReportLeaseResponse response;
    return Call(&v1::BrokerService::Stub::ReportLease, request, &response);
  }
  // A snapshot as the engine of that name sees it; "": as anybody does.
  v1::WatchResponse::Snapshot SnapshotFor(const std::string& name) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    if (!name.empty()) request.set_instance_id(IdOf(name));
    if (!name.empty()) request.set_token(TokenOf(name));
    auto reader = stub_->Watch(&context, request);
    v1::WatchResponse response;
    EXPECT_TRUE(reader->Read(&response));
    context.TryCancel();
    return response.snapshot();
  }
};

TEST_F(BrokerDoorLeaseTest, RegisterTellsTheTermsOfLeases) {
  EXPECT_EQ(registered_.lease_ttl().seconds(), 10);
  EXPECT_EQ(registered_.scale_down_window().seconds(), 60);
}

TEST_F(BrokerDoorLeaseTest, ALeaseGoesFromRequestToReleaseOverTheWire) {
  const v1::Lease offer = Offered(5);
  EXPECT_EQ(offer.donor(), "code");
  EXPECT_EQ(offer.donor_instance(), IdOf("code"));
  EXPECT_EQ(offer.borrower(), "chat");
  EXPECT_EQ(offer.borrower_instance(), IdOf("chat"));
  EXPECT_EQ(offer.extent().first_block(), 95);
  EXPECT_EQ(offer.extent().num_blocks(), 5);
  EXPECT_EQ(offer.num_bytes(), 5 * 368'640);
  EXPECT_EQ(offer.borrower_blocks(), 5);
  EXPECT_EQ(offer.state(), v1::OFFERED);
  EXPECT_EQ(offer.channel(), "/run/swiftcache/code.sock");
  EXPECT_EQ(offer.capability(), "sixteen bytes...");

  EXPECT_EQ(Report("code", offer.lease_id(), v1::REPORT_ACCEPTED), absl::OkStatus());
  EXPECT_EQ(Report("chat", offer.lease_id(), v1::REPORT_ACTIVE), absl::OkStatus());
  EXPECT_EQ(SnapshotFor("").leases(0).epoch(), 9);
  EXPECT_EQ(SnapshotFor("").leases(0).state(), v1::ACTIVE);
  v1::ScaleUpResponse order;
  auto need = From<v1::ScaleUpRequest>("code");
  need.set_need_blocks(1);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::ScaleUp, need, &order), absl::OkStatus());
  EXPECT_THAT(order.lease_ids(), testing::ElementsAre(offer.lease_id()));
  EXPECT_EQ(Report("code", offer.lease_id(), v1::REPORT_REVOKING), absl::OkStatus());
  EXPECT_EQ(Report("chat", offer.lease_id(), v1::REPORT_LOST), absl::OkStatus());
  EXPECT_EQ(Report("code", offer.lease_id(), v1::REPORT_RELEASED), absl::OkStatus());
  EXPECT_EQ(Report("code", offer.lease_id(), v1::REPORT_FENCED).code(), absl::StatusCode::kNotFound);
}

TEST_F(BrokerDoorLeaseTest, ARetriedRequestGetsTheSameLeases) {
  const v1::Lease offer = Offered(5);
  EXPECT_EQ(Offered(5).lease_id(), offer.lease_id());
  EXPECT_EQ(SnapshotFor("").leases_size(), 1);
}

TEST_F(BrokerDoorLeaseTest, ACapabilityGoesToDonorAndBorrowerAlone) {
  Offered(5);
  EXPECT_EQ(SnapshotFor("chat").leases(0).capability(), "sixteen bytes...");
  EXPECT_EQ(SnapshotFor("code").leases(0).capability(), "sixteen bytes...");
  EXPECT_EQ(SnapshotFor("other").leases(0).capability(), "");
  EXPECT_EQ(SnapshotFor("").leases(0).capability(), "");

  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const int64_t id = response.snapshot().leases(0).lease_id();
  ASSERT_TRUE(Report("code", id, v1::REPORT_ACCEPTED).ok());
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.lease().state(), v1::GRANTED);
  EXPECT_EQ(response.lease().capability(), "");
  context.TryCancel();
}

// Names and instance ids are in everybody's snapshot; the token is not.
TEST_F(BrokerDoorLeaseTest, WhoOnlyKnowsAnInstanceCanNeitherReadNorSayAnythingForIt) {
  const v1::Lease offer = Offered(5);
  const v1::WatchResponse::Snapshot published = SnapshotFor("");
  EXPECT_EQ(published.ShortDebugString().find("token of"), std::string::npos);
  for (const std::string& token : {std::string(), std::string("guessed"), TokenOf("code"), IdOf("chat")}) {
    grpc::ClientContext context;
    v1::WatchRequest watch;
    watch.set_instance_id(offer.borrower_instance());
    watch.set_token(token);
    auto reader = stub_->Watch(&context, watch);
    v1::WatchResponse response;
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);

    const auto as_chat = [&](auto request) {
      request.set_name("chat");
      request.set_instance_id(offer.borrower_instance());
      if constexpr (requires { request.incarnation(); }) request.set_incarnation("inc-1");
      request.set_token(token);
      return request;
    };
    const auto code_of = [&](auto method, const auto& request, auto answer) {
      return Call(method, as_chat(request), &answer).code();
    };
    using Stub = v1::BrokerService::Stub;
    const absl::StatusCode denied = absl::StatusCode::kPermissionDenied;
    auto report = From<v1::ReportLeaseRequest>("chat");
    report.set_lease_id(offer.lease_id());
    report.set_report(v1::REPORT_RELEASED);
    EXPECT_EQ(code_of(&Stub::ReportLease, report, v1::ReportLeaseResponse()), denied);
    EXPECT_EQ(code_of(&Stub::RequestLease, WantBlocks(1), v1::RequestLeaseResponse()), denied);
    EXPECT_EQ(code_of(&Stub::ScaleUp, v1::ScaleUpRequest(), v1::ScaleUpResponse()), denied);
    EXPECT_EQ(code_of(&Stub::ReportWindow, v1::ReportWindowRequest(), v1::ReportWindowResponse()), denied);
    EXPECT_EQ(code_of(&Stub::Heartbeat, v1::HeartbeatRequest(), v1::HeartbeatResponse()), denied);
    EXPECT_EQ(code_of(&Stub::Deregister, v1::DeregisterRequest(), v1::DeregisterResponse()), denied);
    v1::RegisterRequest again = RegisterRequestFor(Sharing("chat"), TokenOf("chat"));
    again.set_token(token);
    v1::RegisterResponse registered;
    EXPECT_EQ(Call(&Stub::Register, again, &registered).code(), denied);
  }
  EXPECT_EQ(SnapshotFor("").SerializeAsString(), published.SerializeAsString());
}

TEST_F(BrokerDoorLeaseTest, RefusalsHaveTheCodesOfTheContract) {
  const v1::Lease offer = Offered(5);
  EXPECT_EQ(Report("chat", offer.lease_id(), v1::REPORT_ACTIVE).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Report("chat", offer.lease_id(), v1::REPORT_FENCED).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("code", 1, v1::REPORT_ACCEPTED).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Report("code", offer.lease_id(), v1::LEASE_REPORT_UNSPECIFIED).code(), absl::StatusCode::kInvalidArgument);
  v1::RequestLeaseResponse response;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(0, "k2"), &response).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1, std::string(129, 'k')), &response).code(),
            absl::StatusCode::kInvalidArgument);
  auto stale = WantBlocks(1, "k3");
  stale.set_incarnation("inc-0");
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, stale, &response).code(), absl::StatusCode::kUnavailable);
  v1::ReportWindowResponse window;
  auto negative = From<v1::ReportWindowRequest>("chat");
  negative.set_waiting_blocks(-1);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::ReportWindow, negative, &window).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BrokerDoorLeaseTest, OperatorsLimitAModelAndRevokeALease) {
  const v1::Lease offer = Offered(5);
  v1::RevokeLeaseRequest revoke;
  v1::RevokeLeaseResponse revoked;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RevokeLease, revoke, &revoked).code(), absl::StatusCode::kNotFound);
  revoke.set_lease_id(offer.lease_id());
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RevokeLease, revoke, &revoked), absl::OkStatus());
  EXPECT_EQ(SnapshotFor("").leases(0).state(), v1::REVOKING);

  v1::LimitLeaseRequest limit;
  v1::LimitLeaseResponse limited;
  limit.set_max_borrowed_bytes(0);
  const auto code_of_limit = [&] { return Call(&v1::BrokerService::Stub::LimitLease, limit, &limited).code(); };
  EXPECT_EQ(code_of_limit(), absl::StatusCode::kInvalidArgument);  // of no model
  limit.set_model_name("model");
  EXPECT_EQ(code_of_limit(), absl::StatusCode::kOk);
  v1::RequestLeaseResponse response;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1, "k2"), &response), absl::OkStatus());
  EXPECT_EQ(response.leases_size(), 0);
  EXPECT_THAT(response.shortage(), HasSubstr("limit on model 'model'"));
  ASSERT_EQ(SnapshotFor("").limits_size(), 1);
  EXPECT_EQ(SnapshotFor("").limits(0).model_name(), "model");
  EXPECT_TRUE(SnapshotFor("").limits(0).has_max_borrowed_bytes());
  limit.clear_max_borrowed_bytes();
  EXPECT_EQ(code_of_limit(), absl::StatusCode::kOk);
  EXPECT_EQ(SnapshotFor("").limits_size(), 0);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1, "k3"), &response), absl::OkStatus());
  EXPECT_EQ(response.leases_size(), 1);
}

TEST_F(BrokerDoorLeaseTest, ARestartedBrokerTakesTheLeasesFromRegistrations) {
  const v1::Lease offer = Offered(5);
  ASSERT_TRUE(Report("code", offer.lease_id(), v1::REPORT_ACCEPTED).ok());
  const v1::Lease held = SnapshotFor("code").leases(0);
  StopBroker();
  Start({});
  for (const char* name : {"chat", "code"}) {
    v1::RegisterRequest request = RegisterRequestFor(Sharing(name), TokenOf(name));
    *request.add_leases() = held;
    v1::RegisterResponse response;
    ASSERT_TRUE(Call(&v1::BrokerService::Stub::Register, request, &response).ok());
  }
  const v1::WatchResponse::Snapshot snapshot = SnapshotFor("code");
  ASSERT_EQ(snapshot.leases_size(), 1);
  EXPECT_EQ(snapshot.leases(0).SerializeAsString(), held.SerializeAsString());
}

}  // namespace
}  // namespace swiftcache::broker::rpc
