// SPDX-License-Identifier: Apache-2.0
// A broker behind its door on a port of this machine, and two engines that share.
//
//   TEST_F(BrokerDoorLeaseTest, ...) { const v1::Lease offer = Offered(5); ... }
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "broker/rpc/broker_service.h"
#include "broker/rpc/proto_convert.h"
#include "common/base/instance_token.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "tests/broker/engines.h"
#include "tests/fakes/connected_channel.h"

namespace swiftcache::broker::rpc {

/// `token`: the instance's, which the engine gets.
inline v1::RegisterRequest RegisterRequestFor(membership::EngineInfo info, const std::string& token = "t1") {
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
    options.ledger.offer_timeout = options.ledger.request_ttl = absl::Minutes(10);  // of real time
    auto loop = loop::BrokerLoop::Create(options, clock_, metrics_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    door_ = std::make_unique<BrokerDoor>(*loop_, door_options);
    auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {door_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::BrokerService::NewStub(fakes::ConnectedChannel(server_->address()));
  }
  void StopBroker() {
    if (loop_ != nullptr) loop_->Stop();
    server_.reset();
  }
  absl::Status Register(const membership::EngineInfo& info, const std::string& token = "t1") {
    grpc::ClientContext context;
    return FromGrpc(stub_->Register(&context, RegisterRequestFor(info, token), &registered_));
  }
  absl::Status Heartbeat(const std::string& name, int64_t progress) {
    v1::EngineLoad load;
    load.set_progress(progress);
    return Heartbeat(name, load);
  }
  absl::Status Heartbeat(const std::string& name, const v1::EngineLoad& load) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_name(name);
    request.set_instance_id(InstanceIdOf("t1"));
    request.set_token("t1");
    request.set_incarnation("inc-1");
    *request.mutable_load() = load;
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

class BrokerDoorLeaseTest : public BrokerDoorTest {
 protected:
  void SetUp() override {
    BrokerDoorTest::SetUp();
    for (const char* name : {"chat", "code"}) {
      ASSERT_EQ(Register(Sharing(name), TokenOf(name)), absl::OkStatus());
      v1::ReportWindowRequest window = From<v1::ReportWindowRequest>(name);
      window.set_used_blocks(20);
      v1::ReportWindowResponse response;
      ASSERT_EQ(Call(&v1::BrokerService::Stub::ReportWindow, window, &response), absl::OkStatus());
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
  absl::Status Report(const std::string& name, v1::Lease lease, v1::LeaseState state, uint64_t epoch = 9) {
    auto request = From<v1::ReportLeaseRequest>(name);
    lease.set_state(state);
    lease.set_epoch(epoch);
    *request.mutable_lease() = lease;
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

}  // namespace swiftcache::broker::rpc
