// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/lease_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/server.h"
#include "engine/rpc/broker_client.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::engine::rpc {
namespace {

// A broker that can be told to forget the engine, as it does when it takes it for dead.
class Broker final : public v1::BrokerService::Service {
 public:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest*, v1::RegisterResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (closed_) return {closed_with_, "not yet"};
    known_ = true;
    response->set_incarnation("inc-1");
    response->mutable_lease_ttl()->set_seconds(++registrations_);
    response->mutable_heartbeat_interval()->set_nanos(20'000'000);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*, v1::HeartbeatResponse*) override {
    absl::MutexLock lock(&mutex_);
    return known_ ? grpc::Status::OK : grpc::Status(grpc::StatusCode::NOT_FOUND, "register again");
  }
  grpc::Status ReportWindow(grpc::ServerContext*, const v1::ReportWindowRequest* request,
                            v1::ReportWindowResponse*) override {
    absl::MutexLock lock(&mutex_);
    if (!known_) return {grpc::StatusCode::NOT_FOUND, "register again"};
    windows_.push_back(request->used_blocks());
    return grpc::Status::OK;
  }

  void Close(bool closed, grpc::StatusCode with = grpc::StatusCode::UNAVAILABLE) {
    absl::MutexLock lock(&mutex_);
    closed_ = closed;
    closed_with_ = with;
  }
  void ForgetAll() {
    absl::MutexLock lock(&mutex_);
    known_ = false;
    windows_.clear();
  }
  bool WaitForWindow(int64_t used_blocks) {
    absl::MutexLock lock(&mutex_);
    const auto heard = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !windows_.empty() && windows_.back() == used_blocks;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&heard), absl::Seconds(30));
  }

 private:
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false, known_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::StatusCode closed_with_ ABSL_GUARDED_BY(mutex_) = grpc::StatusCode::UNAVAILABLE;
  int registrations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> windows_ ABSL_GUARDED_BY(mutex_);
};

struct NoEvents final : coordinator::LeaseBrokerEvents {
  void OnLease(const lease::Lease&) override {}
  void OnLeases(const std::vector<lease::Lease>&) override {}
  void OnLeaseResponse(absl::StatusOr<coordinator::LeaseResponse>) override {}
  void OnScaleUp(int64_t, absl::StatusOr<std::vector<kv::LeaseId>>) override {}
  void OnTerms(const coordinator::LeaseTerms&) override {}
  void OnReportRefused(const coordinator::LeaseEvent&, const absl::Status&) override {}
};

bool WaitFor(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (!condition() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  return condition();
}

// Lease client and broker client together, at a broker that comes late or forgets.
class ForgottenEngineTest : public testing::Test {
 protected:
  ForgottenEngineTest()
      : server_(*RpcServer::Create({.listen = "127.0.0.1:0"}, {&broker_})),
        client_(BrokerClient::Create(
            {.broker = server_->address(), .instance_id = "i1", .max_reconnect_backoff = absl::Milliseconds(50)})),
        leases_(LeaseClient::Create({.broker = server_->address(),
                                     .instance_id = "i1",
                                     .identity = [this] { return client_->identity(); },
                                     .retry_interval = absl::Milliseconds(20)},
                                    events_)) {}
  ~ForgottenEngineTest() override {
    client_->Leave();
    leases_.reset();
    server_->Stop(absl::Now());
  }
  void Start() {
    client_->Start();
    client_->Ready("127.0.0.1:1", [] { return exec::EngineLoad(); },
                   {.registered = [this](const coordinator::LeaseTerms& terms) {
                     ttl_s_ = absl::ToInt64Seconds(terms.ttl);
                     leases_->Registered();
                   }});
  }

  Broker broker_;
  std::atomic<int64_t> ttl_s_ = 0;  // as last heard
  NoEvents events_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<BrokerClient> client_;
  std::unique_ptr<LeaseClient> leases_;
};

TEST_F(ForgottenEngineTest, AWindowFromBeforeTheRegistrationIsHeardAfterIt) {
  broker_.Close(true);
  EXPECT_TRUE(client_->Reserve({.name = "a", .model_name = "model"}, BrokerClient::NameChoice::kExactly).ok());
  leases_->ReportWindow({.used_blocks = 7});
  Start();
  broker_.Close(false);
  EXPECT_TRUE(broker_.WaitForWindow(7));
}

// An idle donor reports no other window: without this one it would never lend again.
TEST_F(ForgottenEngineTest, ABrokerThatForgotTheEngineHearsTheLastWindowAgain) {
  EXPECT_TRUE(client_->Reserve({.name = "a", .model_name = "model"}, BrokerClient::NameChoice::kExactly).ok());
  Start();
  leases_->ReportWindow({.used_blocks = 7});
  leases_->ReportWindow({.used_blocks = 8});
  EXPECT_TRUE(broker_.WaitForWindow(8));
  broker_.ForgetAll();
  EXPECT_TRUE(broker_.WaitForWindow(8));
}

// As gRPC itself answers for it.
TEST_F(ForgottenEngineTest, ABrokerThatIsJustStoppingKeepsNoEngineFromStarting) {
  broker_.Close(true, grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(client_->Reserve({.name = "a", .model_name = "model"}, BrokerClient::NameChoice::kExactly).ok());
}

TEST_F(ForgottenEngineTest, EachRegistrationBringsTheBrokersTerms) {
  broker_.Close(true);
  EXPECT_TRUE(client_->Reserve({.name = "a", .model_name = "model"}, BrokerClient::NameChoice::kExactly).ok());
  Start();
  EXPECT_EQ(ttl_s_, 0);
  broker_.Close(false);
  EXPECT_TRUE(WaitFor([&] { return ttl_s_ > 0; }));
  const int64_t first = ttl_s_;
  broker_.ForgetAll();
  EXPECT_TRUE(WaitFor([&] { return ttl_s_ > first; }));
}

TEST_F(ForgottenEngineTest, TheAgeOfTheLastHeartbeatGrowsWhileTheBrokerRefuses) {
  constexpr absl::Duration kLong = absl::Milliseconds(500);  // many heartbeats
  broker_.Close(true);
  EXPECT_TRUE(client_->Reserve({.name = "a", .model_name = "model"}, BrokerClient::NameChoice::kExactly).ok());
  Start();
  EXPECT_TRUE(WaitFor([&] { return client_->heartbeat_age() > kLong; }));
  broker_.Close(false);
  EXPECT_TRUE(WaitFor([&] { return client_->heartbeat_age() < kLong; }));
}

}  // namespace
}  // namespace swiftcache::engine::rpc
