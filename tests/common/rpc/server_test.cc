// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "common/rpc/counted_service.h"
#include "common/rpc/status.h"
#include "swiftcache/v1/broker.grpc.pb.h"
#include "tests/fakes/few_descriptors.h"
#include "tests/fakes/held_port.h"
#include "tests/fakes/raw_rpc_client.h"

namespace swiftcache {
namespace {

using ::testing::HasSubstr;

// Answers Deregister when it is told to, and says what metadata it saw.
class SlowBroker final : public CountedService<v1::BrokerService> {
 public:
  SlowBroker() {
    Count("Deregister", &SlowBroker::Deregister);
    Count("Heartbeat", &SlowBroker::Heartbeat);
  }
  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context, const v1::DeregisterRequest*,
                                       v1::DeregisterResponse*) override {
    traceparent = ClientMetadata(*context, "traceparent");
    auto* reactor = context->DefaultReactor();
    pending.set_value(reactor);
    return reactor;
  }
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest*,
                                      v1::HeartbeatResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::string traceparent;
  std::promise<grpc::ServerUnaryReactor*> pending;
};

std::unique_ptr<RpcServer> Serve(grpc::Service& service, const std::string& listen = "127.0.0.1:0") {
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Create({.listen = listen}, {&service});
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

// Of a call to a server that is there: on a busy machine a first attempt to connect may take more than the second that
// it is given.
void BePatient(grpc::ClientContext& context, absl::Duration timeout = absl::Seconds(20)) {
  SetTimeout(context, timeout);
  context.set_wait_for_ready(true);
}

grpc::Status Deregister(const std::string& address, grpc::ClientContext& context) {
  auto stub = v1::BrokerService::NewStub(CreateRpcChannel(address, {}));
  BePatient(context);
  v1::DeregisterResponse response;
  return stub->Deregister(&context, v1::DeregisterRequest(), &response);
}

grpc::Status SendHeartbeat(const std::string& address, size_t name_bytes,
                           grpc_compression_algorithm how = GRPC_COMPRESS_NONE) {
  v1::HeartbeatRequest request;
  request.set_name(std::string(name_bytes, 'x'));
  return fakes::SendBytes(address, "/swiftcache.v1.BrokerService/Heartbeat", request.SerializeAsString(), nullptr, how);
}

int HealthOf(const std::string& address, const std::string& service) {
  std::string bytes;
  if (!service.empty()) bytes = std::string("\x0a") + static_cast<char>(service.size()) + service;
  grpc::ByteBuffer response;
  const grpc::Status status = fakes::SendBytes(address, "/grpc.health.v1.Health/Check", bytes, &response);
  if (!status.ok()) return -status.error_code();
  grpc::Slice out;
  EXPECT_TRUE(response.TrySingleSlice(&out).ok());
  return out.size() == 2 ? out.begin()[1] : 0;
}

constexpr int kServing = 1, kNotServing = 2;

TEST(RpcServerTest, WhatCannotBeParsedIsTheClientsMistake) {
  SlowBroker service;
  auto server = Serve(service);
  const std::string not_utf8 = "\x0a\x02\xff\xfe";  // a name
  for (const std::string& bytes : {not_utf8, std::string("\x0a\x7f")}) {
    const grpc::Status status = fakes::SendBytes(server->address(), "/swiftcache.v1.BrokerService/Deregister", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("UTF-8"));
  }
}

TEST(RpcServerTest, ARequestAboveTheLimitIsRefusedBeforeItIsParsed) {
  SlowBroker service;
  auto server = RpcServer::Create({.listen = "127.0.0.1:0", .max_request_bytes = 1000}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(SendHeartbeat((*server)->address(), 900).ok());
  const grpc::Status status = SendHeartbeat((*server)->address(), 1100);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("larger than max"));
}

// gRPC looks at the size only when it has inflated all of it.
TEST(RpcServerTest, ACompressedRequestIsRefusedBeforeItIsInflated) {
  SlowBroker service;
  auto server = Serve(service);
  for (const grpc_compression_algorithm how : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const grpc::Status status = SendHeartbeat(server->address(), 1000, how);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("disabled"));
  }
}

TEST(RpcServerTest, AnUnknownMethodIsUnimplemented) {
  SlowBroker service;
  auto server = Serve(service);
  EXPECT_EQ(fakes::SendBytes(server->address(), "/swiftcache.v1.BrokerService/Nothing", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(RpcServerTest, HealthIsNotServingUntilToldAndKnowsEveryService) {
  SlowBroker broker;
  auto server = Serve(broker);
  ASSERT_NE(server, nullptr);
  for (const char* name : {"", "swiftcache.v1.BrokerService"})
    EXPECT_EQ(HealthOf(server->address(), name), kNotServing);
  server->SetServing(true);
  for (const char* name : {"", "swiftcache.v1.BrokerService"}) EXPECT_EQ(HealthOf(server->address(), name), kServing);
  EXPECT_EQ(HealthOf(server->address(), "no.such.Service"), -grpc::StatusCode::NOT_FOUND);
}

TEST(RpcServerTest, TakenAddressIsOneErrorThatNamesAddressAndFlag) {
  SlowBroker broker, other;
  auto server = Serve(broker);
  ASSERT_NE(server, nullptr);
  const absl::Status status = RpcServer::Create({.listen = server->address()}, {&other}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server->address()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--listen"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Address already in use"));
}

TEST(RpcServerTest, AnAddressThatThisMachineMayYetGetIsNoMistake) {
  SlowBroker broker;
  const absl::Status status = RpcServer::Create({.listen = "192.0.2.1:50050"}, {&broker}).status();  // RFC 5737
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Cannot assign requested address"));
}

TEST(RpcServerTest, OfAPortThatThisUserMayNotHaveIsSaidWhichItMay) {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first;
  if (first < 2) GTEST_SKIP() << "here every user may have every port";
  SlowBroker broker;
  const bool root = geteuid() == 0;
  ASSERT_EQ(root ? seteuid(65534) : 0, 0);
  const absl::Status status = RpcServer::Create({.listen = "127.0.0.1:1"}, {&broker}).status();
  ASSERT_EQ(root ? seteuid(0) : 0, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Permission denied; choose a port of 1024 or above"));
}

TEST(RpcServerTest, BadAddressIsRefused) {
  SlowBroker broker;
  EXPECT_EQ(RpcServer::Create({.listen = "nonsense"}, {&broker}).status().code(), absl::StatusCode::kInvalidArgument);
}

// gRPC's own listener would never accept again.
TEST(RpcServerTest, AServerThatHadNoDescriptorLeftServesAgainWhenItHas) {
  SlowBroker service;
  auto server = Serve(service);
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(SendHeartbeat(server->address(), 1).ok());
  const absl::StatusOr<HostPort> where = HostPort::Parse(server->address());
  ASSERT_TRUE(where.ok());
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  {
    const fakes::FewDescriptors none(0);
    const sockaddr_in there{.sin_family = AF_INET,
                            .sin_port = htons(static_cast<uint16_t>(where->port)),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    absl::SleepFor(absl::Milliseconds(500));  // it tries to accept meanwhile
  }
  close(client);
  EXPECT_TRUE(SendHeartbeat(server->address(), 1).ok());
}

// gRPC's threads wait for a second before they sleep for 100 ms: the calls come in the middle of that.
TEST(RpcServerTest, CallsToAServerThatWasIdleDoNotWaitForItsThreads) {
  SlowBroker service;
  auto server = Serve(service);
  ASSERT_NE(server, nullptr);
  auto stub = v1::BrokerService::NewStub(CreateRpcChannel(server->address(), {}));
  absl::Duration quickest = absl::InfiniteDuration();
  for (int i = 0; i < 12 && (i < 4 || quickest > absl::Milliseconds(25)); ++i) {  // a busy machine needs more tries
    absl::SleepFor(absl::Milliseconds(1050));
    grpc::ClientContext context;
    BePatient(context);
    v1::HeartbeatResponse response;
    const absl::Time begun = absl::Now();
    ASSERT_TRUE(stub->Heartbeat(&context, v1::HeartbeatRequest(), &response).ok());
    quickest = std::min(quickest, absl::Now() - begun);
  }
  EXPECT_LT(quickest, absl::Milliseconds(25)) << "50 ms each, if they waited";
}

TEST(RpcServerTest, CallsOverTheLimitOfOneConnectionWaitAtTheClient) {
  SlowBroker broker;
  auto server = RpcServer::Create({.listen = "127.0.0.1:0", .max_streams_per_connection = 1}, {&broker});
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::BrokerService::NewStub(CreateRpcChannel((*server)->address(), {}));
  grpc::ClientContext context;
  BePatient(context, absl::InfiniteDuration());
  std::future<grpc::Status> first = std::async(std::launch::async, [&] {
    v1::DeregisterResponse response;
    return stub->Deregister(&context, v1::DeregisterRequest(), &response);
  });
  grpc::ServerUnaryReactor* reactor = broker.pending.get_future().get();
  const auto second = [&](absl::Duration timeout) {
    grpc::ClientContext late;
    SetTimeout(late, timeout);
    v1::HeartbeatResponse response;
    return stub->Heartbeat(&late, v1::HeartbeatRequest(), &response).error_code();
  };
  EXPECT_EQ(second(absl::Milliseconds(200)), grpc::StatusCode::DEADLINE_EXCEEDED);
  reactor->Finish(grpc::Status::OK);
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(second(absl::Seconds(20)), grpc::StatusCode::OK);
}

TEST(RpcServerTest, StopLetsACallFinishAndRefusesNewOnes) {
  SlowBroker broker;
  auto server = Serve(broker);
  ASSERT_NE(server, nullptr);
  const std::string address = server->address();
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-aa-bb-01");
  std::future<grpc::Status> call = std::async(std::launch::async, [&] { return Deregister(address, context); });
  grpc::ServerUnaryReactor* reactor = broker.pending.get_future().get();
  EXPECT_EQ(broker.traceparent, "00-aa-bb-01");

  std::thread stopper([&] { server->Stop(absl::Now() + absl::Seconds(60)); });
  const auto heartbeat = [&address] {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(20));
    v1::HeartbeatResponse response;
    return v1::BrokerService::NewStub(CreateRpcChannel(address, {}))->Heartbeat(&context, {}, &response);
  };
  grpc::Status late = heartbeat();
  for (const absl::Time give_up = absl::Now() + absl::Seconds(30); late.ok() && absl::Now() < give_up;)
    late = heartbeat();
  EXPECT_TRUE(late.error_code() == grpc::StatusCode::UNAVAILABLE || late.error_code() == grpc::StatusCode::CANCELLED)
      << late.error_code() << late.error_message();
  reactor->Finish(grpc::Status::OK);
  EXPECT_TRUE(call.get().ok());
  stopper.join();
}

TEST(RpcServerTest, StopCancelsWhatIsStillThereAtTheDeadline) {
  SlowBroker broker;
  auto server = Serve(broker);
  ASSERT_NE(server, nullptr);
  grpc::ClientContext context;
  const std::string address = server->address();
  std::future<grpc::Status> call = std::async(std::launch::async, [&] { return Deregister(address, context); });
  grpc::ServerUnaryReactor* reactor = broker.pending.get_future().get();
  std::thread stopper([&] { server->Stop(absl::Now()); });
  const grpc::Status status = call.get();
  EXPECT_TRUE(status.error_code() == grpc::StatusCode::CANCELLED ||
              status.error_code() == grpc::StatusCode::UNAVAILABLE)
      << status.error_code() << status.error_message();
  reactor->Finish(grpc::Status::CANCELLED);
  stopper.join();
}

TEST(RpcChannelTest, FindsAServerThatCameBackWithinTheBackoff) {
  const fakes::HeldPort port;
  const std::string& address = port.address();
  auto broker = std::make_unique<SlowBroker>();
  auto server = Serve(*broker, address);
  ASSERT_NE(server, nullptr);
  auto channel = CreateRpcChannel(address, {.max_reconnect_backoff = absl::Milliseconds(200)});
  ASSERT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(20))));
  absl::Duration quickest = absl::InfiniteDuration();
  for (int i = 0; i < 4 && quickest >= absl::Seconds(1); ++i) {  // a busy machine needs more tries
    server.reset();
    ASSERT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, absl::ToChronoTime(absl::Now() + absl::Seconds(20))));
    // Time enough for a backoff that is not bounded to have grown.
    EXPECT_FALSE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(5))));
    broker = std::make_unique<SlowBroker>();
    server = Serve(*broker, address);
    ASSERT_NE(server, nullptr);
    const absl::Time back = absl::Now();
    ASSERT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(20))));
    quickest = std::min(quickest, absl::Now() - back);
  }
  EXPECT_LT(quickest, absl::Seconds(1));
}

}  // namespace
}  // namespace swiftcache
