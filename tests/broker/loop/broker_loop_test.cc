// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/broker_loop.h"

#include <gmock/gmock.h>

#include "tests/broker/loop/loop_fixture.h"

namespace swiftcache::broker::loop {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(BrokerLoopTest, AWatcherGetsASnapshotThenEveryChange) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  ASSERT_TRUE(Register(EngineNamed("b")).ok());
  ASSERT_TRUE(Heartbeat("b", {.running_requests = 3, .progress = 1}).ok());
  ASSERT_TRUE(Deregister("a").ok());
  const std::vector<WatchEvent> events = watcher->WaitFor(4);
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_THAT(std::get<WatchEvent::Snapshot>(events[0].what).engines, SizeIs(1));
  EXPECT_EQ(std::get<membership::EngineStatus>(events[1].what).info.name, "b");
  EXPECT_EQ(std::get<membership::EngineStatus>(events[2].what).load.running_requests, 3);
  EXPECT_EQ(std::get<membership::Removed>(events[3].what).name, "a");
  EXPECT_FALSE(std::get<membership::Removed>(events[3].what).died);
  for (const WatchEvent& event : events) EXPECT_EQ(event.incarnation, "inc-1");
}

TEST_F(BrokerLoopTest, SilenceIsDeathWithoutAnyMessageToWakeTheLoop) {
  loop_.reset();
  Start(real_clock_, {.heartbeat_interval = absl::Milliseconds(20), .heartbeat_misses = 3});
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  const absl::Time start = real_clock_.Now();
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  const std::vector<WatchEvent> events = watcher->WaitFor(3);
  EXPECT_GE(real_clock_.Now() - start, absl::Milliseconds(60));
  EXPECT_EQ(std::get<membership::Removed>(events[2].what).name, "a");
  EXPECT_TRUE(std::get<membership::Removed>(events[2].what).died);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_broker_deaths_total 1"));
}

TEST_F(BrokerLoopTest, HeartbeatOfAnotherIncarnationIsNotFound) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  EXPECT_EQ(Heartbeat("a", {}, "inc-0").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Heartbeat("a", {}).ok());
}

TEST_F(BrokerLoopTest, ARefusedNameSaysWhenItMayBeFree) {
  ASSERT_TRUE(Register(EngineNamed("a", "i1")).ok());
  EXPECT_EQ(Register(EngineNamed("a", "i2")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(retry_after_, absl::Seconds(3));
}

TEST_F(BrokerLoopTest, ASlowWatcherIsDroppedAndTheOthersLoseNothing) {
  auto slow = std::make_shared<KeepingWatcher>(2);
  auto fast = std::make_shared<KeepingWatcher>();
  loop_->Watch(slow);
  loop_->Watch(fast);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Register(EngineNamed(name)).ok());
  EXPECT_THAT(fast->WaitFor(4), SizeIs(4));
  ASSERT_THAT(slow->closed(), SizeIs(1));
  EXPECT_EQ(slow->closed()[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(slow->WaitFor(2), SizeIs(2));
  EXPECT_THAT(fast->closed(), IsEmpty());
}

TEST_F(BrokerLoopTest, AnUnwatcherHearsNothingMore) {
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  loop_->Unwatch(watcher);
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  ASSERT_TRUE(Register(EngineNamed("b")).ok());  // the batch of messages before is done and freed
  EXPECT_THAT(watcher->WaitFor(1), SizeIs(1));
  EXPECT_EQ(watcher.use_count(), 1);
}

TEST_F(BrokerLoopTest, ABrokerThatSleptDoesNotCallEverybodyDead) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  ASSERT_TRUE(Register(EngineNamed("b")).ok());
  clock_.Advance(absl::Hours(1));  // the process was suspended
  EXPECT_TRUE(Heartbeat("a", {}).ok());
  EXPECT_TRUE(Heartbeat("b", {}).ok());
}

TEST_F(BrokerLoopTest, StopClosesWatchersAndRefusesMessages) {
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  watcher->WaitFor(1);
  loop_->Stop();
  ASSERT_THAT(watcher->closed(), SizeIs(1));
  EXPECT_EQ(watcher->closed()[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Register(EngineNamed("a")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Heartbeat("a", {}).code(), absl::StatusCode::kUnavailable);
  auto late = std::make_shared<KeepingWatcher>();
  loop_->Watch(late);
  ASSERT_THAT(late->closed(), SizeIs(1));
  EXPECT_EQ(late->closed()[0].code(), absl::StatusCode::kUnavailable);
}

TEST_F(BrokerLoopTest, MetricsCountEnginesByState) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  ASSERT_TRUE(Register(EngineNamed("b", "i1", membership::EngineState::kDraining)).ok());
  ASSERT_TRUE(Heartbeat("a", {}).ok());
  ASSERT_TRUE(Heartbeat("a", {}).ok());  // gauges are set after each batch: the one before is done
  const std::string text = metrics_.Serialize();
  for (const char* line : {"engines{state=\"ready\"} 1", "engines{state=\"draining\"} 1", "registrations_total 2"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Leases.

class BrokerLoopLeaseTest : public BrokerLoopTest {
 protected:
  static membership::EngineInfo Sharing(const std::string& name) {
    membership::EngineInfo info = EngineNamed(name);
    info.lease_channel = "/run/" + name;
    info.node_id = "node";
    info.page_bytes = 4096;
    return info;
  }
  // A call's answer, waited for.
  template <typename T, typename Call>
  T Await(const Call& call) {
    std::promise<T> result;
    call([&](T value) { result.set_value(std::move(value)); });
    return result.get_future().get();
  }
  static Caller CallerNamed(const std::string& name, const std::string& incarnation = "inc-1") {
    return {.name = name, .instance_id = "i1", .incarnation = incarnation};
  }
  absl::Status Window(const Caller& caller, int64_t used_blocks) {
    return Await<absl::Status>([&](auto reply) { loop_->ReportWindow(caller, {.used_blocks = used_blocks}, reply); });
  }
  absl::StatusOr<ledger::LeaseResponse> Request(const Caller& caller, int64_t blocks) {
    const ledger::LeaseRequest request{.key = "k" + std::to_string(++keys_), .want_bytes = blocks * 368'640};
    return Await<absl::StatusOr<ledger::LeaseResponse>>(
        [&](auto reply) { loop_->RequestLease(caller, request, reply); });
  }
  absl::StatusOr<std::vector<ledger::LeaseId>> ScaleUp(const Caller& caller, int64_t blocks) {
    return Await<absl::StatusOr<std::vector<ledger::LeaseId>>>(
        [&](auto reply) { loop_->ScaleUp(caller, blocks, reply); });
  }
  absl::Status Report(const Caller& caller, ledger::Lease lease, ledger::LeaseState state) {
    lease.state = state;
    lease.epoch = ledger::Epoch(3);
    return Await<absl::Status>([&](auto reply) { loop_->ReportLease(caller, lease, "because", reply); });
  }
  // "chat" borrows from "code".
  void RegisterPair() {
    ASSERT_TRUE(Register(Sharing("chat")).ok());
    ASSERT_TRUE(Register(Sharing("code")).ok());
    ASSERT_TRUE(Window(CallerNamed("chat"), 100).ok());
    ASSERT_TRUE(Window(CallerNamed("code"), 20).ok());
  }
  ledger::Lease Active(int64_t blocks) {
    const auto answer = Request(CallerNamed("chat"), blocks);
    EXPECT_TRUE(answer.ok() && answer->leases.size() == 1) << answer.status();
    const ledger::Lease lease = answer->leases.at(0);
    EXPECT_TRUE(Report(CallerNamed("code"), lease, ledger::LeaseState::kGranted).ok());
    return lease;
  }
  static std::vector<ledger::LeaseState> StatesIn(const std::vector<WatchEvent>& events) {
    std::vector<ledger::LeaseState> states;
    for (const WatchEvent& event : events) {
      if (const auto* lease = std::get_if<ledger::Lease>(&event.what)) states.push_back(lease->state);
    }
    return states;
  }
  int keys_ = 0;
};

TEST_F(BrokerLoopLeaseTest, EveryStepOfALeaseIsTold) {
  RegisterPair();
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  const ledger::Lease lease = Active(5);
  ASSERT_TRUE(Report(CallerNamed("code"), lease, ledger::LeaseState::kReleased).ok());
  const std::vector<WatchEvent> events = watcher->WaitFor(4);
  using S = ledger::LeaseState;
  EXPECT_THAT(StatesIn(events), ElementsAre(S::kOffered, S::kGranted, S::kReleased));
  EXPECT_EQ(std::get<ledger::Lease>(events[1].what).capability, "capability");
  EXPECT_EQ(std::get<ledger::Lease>(events[2].what).epoch, ledger::Epoch(3));
}

TEST_F(BrokerLoopLeaseTest, AnEngineHearsOfItsOwnLeasesAndOfLimitsAlone) {
  for (const char* name : {"chat", "code"}) {
    membership::EngineInfo info = Sharing(name);
    info.instance_id = name;
    ASSERT_TRUE(Register(info).ok());
  }
  const Caller chat{"chat", "chat", "inc-1"}, code{"code", "code", "inc-1"};
  ASSERT_TRUE(Window(code, 20).ok());
  auto of_chat = std::make_shared<KeepingWatcher>(1000, "chat");
  auto of_code = std::make_shared<KeepingWatcher>(1000, "code");
  auto of_other = std::make_shared<KeepingWatcher>(1000, "other");
  for (const auto& watcher : {of_chat, of_code, of_other}) loop_->Watch(watcher);
  ASSERT_EQ(Request(chat, 5)->leases.size(), 1);
  ASSERT_TRUE(Await<absl::Status>([&](auto reply) { loop_->LimitLease("nobody's", 0, reply); }).ok());
  for (const auto& watcher : {of_chat, of_code}) {
    const std::vector<WatchEvent> events = watcher->WaitFor(3);
    EXPECT_THAT(StatesIn(events), ElementsAre(ledger::LeaseState::kOffered));
    EXPECT_TRUE(std::holds_alternative<ledger::LeaseLimit>(events[2].what));
  }
  EXPECT_TRUE(std::holds_alternative<ledger::LeaseLimit>(of_other->WaitFor(2)[1].what));
  loop_->Unwatch(of_code);
  ASSERT_EQ(Request(chat, 5)->leases.size(), 1);
  EXPECT_THAT(of_chat->WaitFor(4), SizeIs(4));
  EXPECT_THAT(of_code->WaitFor(3), SizeIs(3));
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_broker_watchers 2"));
}

TEST_F(BrokerLoopLeaseTest, ASnapshotHoldsTheLeasesThatHaveNotEnded) {
  RegisterPair();
  const ledger::Lease lease = Active(5);
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  const auto snapshot = std::get<WatchEvent::Snapshot>(watcher->WaitFor(1)[0].what);
  ASSERT_THAT(snapshot.leases, SizeIs(1));
  EXPECT_EQ(snapshot.leases[0].id, lease.id);
  EXPECT_EQ(snapshot.leases[0].state, ledger::LeaseState::kGranted);
}

TEST_F(BrokerLoopLeaseTest, AnotherIncarnationIsToRegisterAgainWhateverIsCalled) {
  RegisterPair();
  const Caller old = CallerNamed("chat", "inc-0");
  const auto kUnavailable = absl::StatusCode::kUnavailable;
  EXPECT_EQ(Window(old, 1).code(), kUnavailable);
  EXPECT_EQ(Request(old, 1).status().code(), kUnavailable);
  EXPECT_EQ(ScaleUp(old, 1).status().code(), kUnavailable);
  EXPECT_EQ(Report(old, {}, ledger::LeaseState::kReleased).code(), kUnavailable);
  EXPECT_EQ(Request(CallerNamed("stranger"), 1).status().code(), kUnavailable);
}

TEST_F(BrokerLoopLeaseTest, ADonorThatLeavesTakesItsLeasesAlongAndThoseOfABorrowerAreAskedBack) {
  RegisterPair();
  Active(5);
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  ASSERT_TRUE(Deregister("chat").ok());
  EXPECT_THAT(StatesIn(watcher->WaitFor(3)), ElementsAre(ledger::LeaseState::kRevoking));
  ASSERT_TRUE(Deregister("code").ok());
  EXPECT_THAT(StatesIn(watcher->WaitFor(5)), ElementsAre(ledger::LeaseState::kRevoking, ledger::LeaseState::kReleased));
}

TEST_F(BrokerLoopLeaseTest, AnInstanceThatTakesADeadOnesNameHasNoneOfItsLeases) {
  RegisterPair();
  Active(5);
  for (int i = 0; i < 5; ++i) {  // "code" falls silent
    clock_.Advance(absl::Milliseconds(900));
    ASSERT_TRUE(Heartbeat("chat", {}).ok());
  }
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  membership::EngineInfo next = Sharing("code");
  next.instance_id = "i2";
  ASSERT_TRUE(Register(next).ok());
  EXPECT_THAT(std::get<WatchEvent::Snapshot>(watcher->WaitFor(1)[0].what).leases, IsEmpty());
}

TEST_F(BrokerLoopLeaseTest, AStalledOrDrainingDonorGetsNoOffers) {
  RegisterPair();
  membership::EngineInfo draining = Sharing("code");
  draining.state = membership::EngineState::kDraining;
  ASSERT_TRUE(Register(draining).ok());
  EXPECT_THAT(Request(CallerNamed("chat"), 5)->leases, IsEmpty());
  ASSERT_TRUE(Register(Sharing("code")).ok());
  EXPECT_THAT(Request(CallerNamed("chat"), 5)->leases, SizeIs(1));
}

TEST_F(BrokerLoopLeaseTest, AnOfferThatNobodyAnswersEndsWithoutAnyMessageToWakeTheLoop) {
  loop_.reset();
  offer_timeout_ = absl::Milliseconds(30);
  Start(real_clock_, {.heartbeat_interval = absl::Seconds(20)});
  RegisterPair();
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  ASSERT_TRUE(Request(CallerNamed("chat"), 5).ok());
  using S = ledger::LeaseState;
  EXPECT_THAT(StatesIn(watcher->WaitFor(3)), ElementsAre(S::kOffered, S::kReleased));
}

TEST_F(BrokerLoopLeaseTest, ARestartedBrokerKnowsTheLeasesThatDonorsGive) {
  RegisterPair();
  ledger::Lease lease = Active(5);
  lease.state = ledger::LeaseState::kGranted;
  lease.epoch = ledger::Epoch(3);
  loop_.reset();
  Start(clock_, {});
  ASSERT_TRUE(Register(Sharing("code"), {lease}).ok());
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  EXPECT_THAT(std::get<WatchEvent::Snapshot>(watcher->WaitFor(1)[0].what).leases, ElementsAre(lease));
}

TEST_F(BrokerLoopLeaseTest, OperatorsLimitAndRevoke) {
  RegisterPair();
  const ledger::Lease lease = Active(5);
  const auto revoke = [&](ledger::LeaseId id) {
    return Await<absl::Status>([&](auto reply) { loop_->RevokeLease(id, reply); });
  };
  EXPECT_TRUE(revoke(lease.id).ok());
  EXPECT_EQ(revoke(ledger::LeaseId(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Await<absl::Status>([&](auto reply) { loop_->LimitLease("model", 0, reply); }).ok());
  EXPECT_THAT(Request(CallerNamed("chat"), 5)->shortage, HasSubstr("limit on model"));
}

TEST_F(BrokerLoopLeaseTest, MetricsCountStepsAndBytes) {
  RegisterPair();
  const ledger::Lease lease = Active(5);
  EXPECT_THAT(*ScaleUp(CallerNamed("code"), 1), ElementsAre(lease.id));
  ASSERT_TRUE(Await<absl::Status>([&](auto reply) { loop_->RevokeLease(lease.id, reply); }).ok());
  Active(7);
  ASSERT_TRUE(Report(CallerNamed("code"), lease, ledger::LeaseState::kFenced).ok());
  ASSERT_TRUE(Heartbeat("chat", {}).ok());  // the message before is done
  const std::string text = metrics_.Serialize();
  for (const std::string line :
       {"lease_granted_total{borrower=\"chat\",donor=\"code\"} 2",
        "lease_revoked_total{borrower=\"chat\",donor=\"code\"} 1",
        "lease_fenced_total{borrower=\"chat\",donor=\"code\"} 1", "swiftcache_scale_up_total 1",
        "swiftcache_scale_down_total 2", "leased_bytes{direction=\"in\",engine=\"chat\"} 2580480",
        "leased_bytes{direction=\"out\",engine=\"code\"} 2580480",
        "elastic_unit_bytes{borrower=\"chat\",donor=\"code\"} 368640",
        "elastic_unit_wasted_bytes{borrower=\"chat\",donor=\"code\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(BrokerLoopLeaseTest, AnEngineThatLeavesTakesTheUnitsOfItsPairsAlong) {
  RegisterPair();
  ASSERT_TRUE(Request(CallerNamed("chat"), 5).ok());
  ASSERT_TRUE(Deregister("code").ok());
  ASSERT_TRUE(Heartbeat("chat", {}).ok());  // the message before is done
  EXPECT_EQ(metrics_.Serialize().find("swiftcache_elastic_unit_bytes{"), std::string::npos);
}

TEST(BrokerLoopOptionsTest, OptionsOutOfRangeAreRefused) {
  RealClock clock;
  Metrics metrics;
  EXPECT_EQ(BrokerLoop::Create({.incarnation = ""}, clock, metrics).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BrokerLoop::Create({.incarnation = "x"}, clock, metrics).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto expect_refused = [&](auto spoil) {
    Options options{.new_capability = [] { return "c"; }, .incarnation = "x"};
    EXPECT_TRUE(BrokerLoop::Create(options, clock, metrics).ok());
    spoil(options);
    EXPECT_EQ(BrokerLoop::Create(options, clock, metrics).status().code(), absl::StatusCode::kInvalidArgument);
  };
  expect_refused([](Options& options) { options.membership.heartbeat_misses = 0; });
  expect_refused([](Options& options) { options.membership.max_engines = membership::kMaxEngines + 1; });
  expect_refused([](Options& options) { options.ledger.max_lease_bytes = -1; });
  expect_refused([](Options& options) { options.ledger.elastic.headroom_percent = 101; });
  expect_refused([](Options& options) { options.ledger.elastic.window = absl::ZeroDuration(); });
  expect_refused([](Options& options) { options.lease_ttl = absl::ZeroDuration(); });
}

}  // namespace
}  // namespace swiftcache::broker::loop
