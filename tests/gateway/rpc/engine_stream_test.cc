// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/engine_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/proto_duration.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gateway/rpc/grpc_engine_client.h"
#include "tests/fakes/fake_engine_service.h"
#include "tests/fakes/held_port.h"

namespace swiftcache::gateway::rpc {
namespace {

using fakes::FakeEngineService;
using fakes::FakeGeneration;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kTrace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

class Recorder final : public fleet::EngineObserver {
 public:
  void OnEvent(fleet::EngineEvent event) override {
    {
      absl::MutexLock lock(&mutex_);
      EXPECT_FALSE(done_.has_value());
      ids_.insert(ids_.end(), event.token_ids.begin(), event.token_ids.end());
      finish_ = event.finish;
      ++events_;
    }
    if (on_event) on_event();
  }
  void OnDone(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(done_.has_value());
    done_ = std::move(status);
  }
  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](Recorder* r) { return r->done_.has_value(); }, this));
    return *done_;
  }
  /// Or for the end.
  void WaitForAnEvent() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](Recorder* r) { return r->events_ > 0 || r->done_.has_value(); }, this));
  }
  bool done() {
    absl::MutexLock lock(&mutex_);
    return done_.has_value();
  }
  std::vector<int32_t> ids() {
    absl::MutexLock lock(&mutex_);
    return ids_;
  }
  std::optional<fleet::FinishReason> finish() {
    absl::MutexLock lock(&mutex_);
    return finish_;
  }

  std::function<void()> on_event;  // set before the call

 private:
  absl::Mutex mutex_;
  std::vector<int32_t> ids_;
  std::optional<fleet::FinishReason> finish_;
  int events_ = 0;
  std::optional<absl::Status> done_;
};

class EngineStreamTest : public ::testing::Test {
 protected:
  void Listen(const std::string& address) {
    auto server = RpcServer::Create({.listen = address}, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Serve(const std::string& address = "127.0.0.1:0") {
    service_.card_hash = "cafe";
    ASSERT_NO_FATAL_FAILURE(Listen(address));
    client_ = GrpcEngineClient::Create({.address = server_->address(), .model_name = "chat", .card_hash = "cafe"});
    // On a busy machine the first attempt may take more than the second that it is given, and a call fails with it.
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (!client_->Ping(absl::Seconds(20)).ok()) ASSERT_LT(absl::Now(), give_up);
  }
  void See(const FakeGeneration& generation) {
    absl::MutexLock lock(&mutex_);
    seen_ = generation.begin();
  }
  /// Waits for it.
  v1::GenerateManyRequest::Begin Seen() {
    absl::MutexLock lock(&mutex_);
    const auto there = [this] {
      mutex_.AssertHeld();
      return seen_.has_request();
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
    return seen_;
  }
  ~EngineStreamTest() override {
    if (server_ != nullptr) server_->Stop(absl::Now());
  }

  // Of scripts, which may go on when their test is over.
  absl::Notification go_on_, cancelled_;
  absl::Mutex mutex_;
  v1::GenerateManyRequest::Begin seen_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> ids_ ABSL_GUARDED_BY(mutex_);

  FakeEngineService service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<GrpcEngineClient> client_;
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
};

TEST_F(EngineStreamTest, StreamsTokensAndPassesRequestAndTrace) {
  service_.generate = [this](FakeGeneration& generation) {
    See(generation);
    generation.SendTokens(3);
    return absl::OkStatus();
  };
  Serve();
  fleet::EngineRequest request;
  request.request_id = "r1";
  request.traceparent = kTrace;
  request.token_ids = {5, 6};
  request.sampling.temperature = 0.5F;
  request.sampling.stop = {"not for engines"};
  auto call = client_->Generate(request, recorder_);
  EXPECT_EQ(recorder_->Wait(), absl::OkStatus());
  EXPECT_THAT(recorder_->ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(recorder_->finish(), fleet::FinishReason::kLength);
  const v1::GenerateManyRequest::Begin seen = Seen();
  EXPECT_EQ(seen.request().request_id(), "r1");
  EXPECT_THAT(seen.request().token_ids(), ElementsAre(5, 6));
  EXPECT_FLOAT_EQ(seen.request().sampling().temperature(), 0.5F);
  EXPECT_FALSE(seen.request().sampling().has_top_p());
  EXPECT_EQ(seen.request().sampling().stop_size(), 0);
  EXPECT_EQ(seen.request().model_name(), "chat");
  EXPECT_EQ(seen.request().model_card_hash(), "cafe");
  EXPECT_EQ(seen.traceparent(), kTrace);
  EXPECT_FALSE(seen.has_timeout());
}

TEST_F(EngineStreamTest, ATraceThatIsNoTraceparentIsNotSent) {
  service_.generate = [this](FakeGeneration& generation) {
    See(generation);
    return absl::OkStatus();
  };
  Serve();
  fleet::EngineRequest request;
  request.traceparent = "00-\t\x80";
  auto call = client_->Generate(request, recorder_);
  EXPECT_EQ(recorder_->Wait(), absl::OkStatus());
  EXPECT_TRUE(Seen().has_request());
  EXPECT_EQ(Seen().traceparent(), "");
}

TEST_F(EngineStreamTest, ManyCallsShareAStreamAndAMessageAndMeetNobodyElses) {
  service_.generate = [this](FakeGeneration& generation) {
    absl::MutexLock lock(&mutex_);
    ids_[generation.request().request_id()] = generation.id();
    if (ids_.size() < 3) return absl::OkStatus();
    v1::GenerateManyResponse step;
    for (const auto& [request_id, id] : ids_) {
      FakeGeneration::AddOutput(step, id).mutable_tokens()->add_token_ids(request_id[0]);
      FakeGeneration::AddOutput(step, id).mutable_end();
    }
    FakeGeneration::AddOutput(step, 1234).mutable_tokens()->add_token_ids(7);  // of nobody
    generation.Send(step);
    return absl::OkStatus();
  };
  service_.ends_by_script = true;
  Serve();
  std::map<std::string, std::shared_ptr<Recorder>> recorders;
  std::vector<std::unique_ptr<fleet::EngineCall>> calls;
  for (const std::string name : {"a", "b", "c"}) {
    recorders[name] = std::make_shared<Recorder>();
    fleet::EngineRequest request;
    request.request_id = name;
    calls.push_back(client_->Generate(request, recorders[name]));
  }
  for (const auto& [name, recorder] : recorders) {
    EXPECT_EQ(recorder->Wait(), absl::OkStatus());
    EXPECT_THAT(recorder->ids(), ElementsAre(name[0]));
  }
  EXPECT_EQ(service_.streams_begun(), 1);
}

TEST_F(EngineStreamTest, AnEndHasItsCodeItsMessageAndWhenToComeBack) {
  service_.generate = [](FakeGeneration&) {
    return WithRetryDelay(absl::ResourceExhaustedError("queue full"), absl::Seconds(3));
  };
  Serve();
  auto call = client_->Generate({}, recorder_);
  const absl::Status status = recorder_->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue full");
  EXPECT_EQ(RetryDelayOf(status), absl::Seconds(3));
}

TEST_F(EngineStreamTest, CancelReachesTheServerAndMayComeAgainLater) {
  service_.generate = [this](FakeGeneration& generation) {
    generation.SendTokens(2);
    const absl::Status status = generation.WaitCancelled();
    cancelled_.Notify();
    return status;
  };
  Serve();
  auto call = client_->Generate({}, recorder_);
  recorder_->WaitForAnEvent();
  call->Cancel();
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kCancelled);
  cancelled_.WaitForNotification();
  call->Cancel();
}

TEST_F(EngineStreamTest, CancelOfAnIndexReachesTheServerAndEndsNothingHere) {
  service_.generate = [](FakeGeneration& generation) {
    generation.SendTokens(1);
    EXPECT_EQ(generation.WaitCancelledIndex(), 3);
    generation.SendTokens(2);
    return absl::OkStatus();
  };
  Serve();
  auto call = client_->Generate({}, recorder_);
  recorder_->WaitForAnEvent();
  call->CancelIndex(3);
  EXPECT_EQ(recorder_->Wait(), absl::OkStatus());
  EXPECT_THAT(recorder_->ids(), ElementsAre(0, 0, 1));
  call->CancelIndex(3);
}

TEST_F(EngineStreamTest, CancelReachesTheServerBehindThoseOfIndices) {
  service_.generate = [this](FakeGeneration& generation) {
    generation.SendTokens(1);
    const absl::Status end = generation.WaitCancelled();
    cancelled_.Notify();
    return end;
  };
  Serve();
  const auto call = client_->Generate({}, recorder_);
  recorder_->WaitForAnEvent();
  for (int i = 0; i < 1000; ++i) call->CancelIndex(i);  // some wait to be sent
  call->Cancel();
  EXPECT_TRUE(cancelled_.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

TEST_F(EngineStreamTest, CancelNeedsNoAnswerAndEndsNobodyElse) {
  service_.generate = [this](FakeGeneration& generation) {
    go_on_.WaitForNotification();  // frozen
    generation.SendTokens(1);
    return absl::OkStatus();
  };
  Serve();
  const auto other = std::make_shared<Recorder>();
  auto kept = client_->Generate({}, other);
  auto call = client_->Generate({}, recorder_);
  call->Cancel();
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kCancelled);
  go_on_.Notify();
  EXPECT_EQ(other->Wait(), absl::OkStatus());
  EXPECT_THAT(recorder_->ids(), IsEmpty()) << "nothing follows the end";
}

TEST_F(EngineStreamTest, WhoCancelsInAnEventHearsTheEndBehindIt) {
  service_.generate = [](FakeGeneration& generation) {
    generation.SendTokens(100);
    return absl::OkStatus();
  };
  Serve();
  absl::Notification has_call;
  std::unique_ptr<fleet::EngineCall> call;
  recorder_->on_event = [&] {
    has_call.WaitForNotification();
    call->Cancel();
    EXPECT_FALSE(recorder_->done());
  };
  call = client_->Generate({}, recorder_);
  has_call.Notify();
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(recorder_->ids(), ElementsAre(0));
}

TEST_F(EngineStreamTest, TheDeadlineEndsACallWhateverTheEngineDoes) {
  service_.generate = [this](FakeGeneration& generation) {
    See(generation);
    go_on_.WaitForNotification();
    return absl::OkStatus();
  };
  Serve();
  fleet::EngineRequest request;
  request.deadline = absl::Now() + absl::Seconds(3);  // of which the way to the engine may take most
  auto call = client_->Generate(request, recorder_);
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(absl::Now(), request.deadline);
  go_on_.Notify();
  const absl::Duration told = DurationFromProto(Seen().timeout());
  EXPECT_GT(told, absl::ZeroDuration()) << "the engine is told";
  EXPECT_LE(told, absl::Seconds(3));
}

TEST_F(EngineStreamTest, AStreamThatBreaksEndsItsCallsAndTheNextCallMakesANewOne) {
  service_.generate = [](FakeGeneration& generation) {
    generation.SendTokens(1);
    return generation.request().request_id() == "next" ? absl::OkStatus() : generation.WaitCancelled();
  };
  Serve();
  const auto other = std::make_shared<Recorder>();
  auto one = client_->Generate({}, recorder_), two = client_->Generate({}, other);
  recorder_->WaitForAnEvent();
  other->WaitForAnEvent();
  service_.CancelStreams();
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(other->Wait().code(), absl::StatusCode::kUnavailable);
  const auto next = std::make_shared<Recorder>();
  fleet::EngineRequest request;
  request.request_id = "next";
  auto three = client_->Generate(request, next);
  EXPECT_EQ(next->Wait(), absl::OkStatus());
  EXPECT_EQ(service_.streams_begun(), 2);
  one->Cancel();
}

// One that comes before the client has noticed the end of the connection is lost with it.
TEST_F(EngineStreamTest, AnEngineThatRestartsServesAgain) {
  const fakes::HeldPort port;
  service_.generate = [](FakeGeneration& generation) {
    generation.SendTokens(1);
    return absl::OkStatus();
  };
  Serve(port.address());
  const auto served = [this] {
    const auto recorder = std::make_shared<Recorder>();
    const auto call = client_->Generate({}, recorder);
    const absl::Status status = recorder->Wait();
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    return status.ok();
  };
  ASSERT_TRUE(served());
  server_->Stop(absl::Now());
  ASSERT_NO_FATAL_FAILURE(Listen(port.address()));
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  bool again = served();
  for (; !again && absl::Now() < give_up; again = served()) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(again);
  EXPECT_GE(service_.streams_begun(), 2);
}

TEST_F(EngineStreamTest, AClientThatGoesLeavesItsCallsAndThenNoStream) {
  service_.generate = [this](FakeGeneration& generation) {
    go_on_.WaitForNotification();
    generation.SendTokens(2);
    return absl::OkStatus();
  };
  Serve();
  auto call = client_->Generate({}, recorder_);
  client_.reset();
  go_on_.Notify();
  EXPECT_EQ(recorder_->Wait(), absl::OkStatus());
  EXPECT_THAT(recorder_->ids(), ElementsAre(0, 1));
  EXPECT_TRUE(service_.WaitForNoStream());
}

TEST_F(EngineStreamTest, CallsOfManyThreadsThatAreCancelledAtAnyMomentEndOnce) {
  service_.generate = [](FakeGeneration& generation) {
    generation.SendTokens(5);
    return absl::OkStatus();
  };
  Serve();
  const auto client = [this](int seed) {
    for (int i = 0; i < 50; ++i) {
      const auto recorder = std::make_shared<Recorder>();
      fleet::EngineRequest request;
      if ((seed + i) % 5 == 0) request.deadline = absl::Now() + absl::Milliseconds(1);
      auto call = client_->Generate(request, recorder);
      if ((seed + i) % 3 == 0) recorder->WaitForAnEvent();
      if ((seed + i) % 2 == 0) call->Cancel();
      if ((seed + i) % 7 == 0 && seed == 0) service_.CancelStreams();
      (void)recorder->Wait();
    }
  };
  std::vector<std::thread> threads;
  for (int seed = 0; seed < 4; ++seed) threads.emplace_back(client, seed);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EngineStreamTest, AnEngineThatIsNotThereIsUnavailableAtOnce) {
  Serve();
  const std::string address = server_->address();
  server_->Stop(absl::Now());
  server_.reset();
  client_ = GrpcEngineClient::Create({.address = address, .card_hash = ""});
  for (int i = 0; i < 3; ++i) {
    const auto recorder = std::make_shared<Recorder>();
    auto call = client_->Generate({}, recorder);
    EXPECT_EQ(recorder->Wait().code(), absl::StatusCode::kUnavailable);
  }
}

struct HeldUp final : fleet::EngineObserver {
  void OnEvent(fleet::EngineEvent) override {}
  void OnDone(absl::Status) override {
    go_on.WaitForNotification();
    done.Notify();
  }
  absl::Notification go_on, done;
};

// Then its connection ends on one of gRPC's callback threads, and nothing else in this process uses these.
TEST_F(EngineStreamTest, ACallMayOutliveAllElse) {
  for (int round = 0; round < 50; ++round) {
    const auto observer = std::make_shared<HeldUp>();
    GrpcEngineClient::Create({.address = "127.0.0.1:1", .card_hash = ""})->Generate({}, observer);
    observer->go_on.Notify();
    observer->done.WaitForNotification();
  }
}

}  // namespace
}  // namespace swiftcache::gateway::rpc
