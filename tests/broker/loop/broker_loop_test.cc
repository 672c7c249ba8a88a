// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/broker_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/broker/engines.h"
#include "tests/fakes/fake_clock.h"

namespace swiftcache::broker::loop {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Keeps what it is told, up to `capacity` events.
class KeepingWatcher final : public Watcher {
 public:
  explicit KeepingWatcher(size_t capacity = 1000) : capacity_(capacity) {}
  const std::string& name() const override { return name_; }
  bool Offer(const WatchEvent& event) override {
    absl::MutexLock lock(&mutex_);
    if (events_.size() >= capacity_) return false;
    events_.push_back(event);
    return true;
  }
  void Close(absl::Status why) override {
    absl::MutexLock lock(&mutex_);
    closed_.push_back(why);
  }
  std::vector<WatchEvent> WaitFor(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] { return events_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30))) << "only " << events_.size();
    return events_;
  }
  std::vector<absl::Status> closed() {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  const std::string name_ = "test";
  const size_t capacity_;
  absl::Mutex mutex_;
  std::vector<WatchEvent> events_;
  std::vector<absl::Status> closed_;
};

class BrokerLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(clock_, {}); }

  void Start(const Clock& clock, membership::Options membership) {
    Options options{.membership = membership, .incarnation = "inc-1"};
    auto loop = BrokerLoop::Create(options, clock, metrics_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }
  absl::Status Register(const membership::EngineInfo& info) {
    std::promise<absl::Status> result;
    loop_->Register(info, [&](absl::Status status, std::optional<absl::Duration> retry_after) {
      retry_after_ = retry_after;
      result.set_value(status);
    });
    return result.get_future().get();
  }
  absl::Status Heartbeat(const std::string& name, const membership::EngineLoad& load,
                         const std::string& incarnation = "inc-1") {
    std::promise<absl::Status> result;
    loop_->Heartbeat(name, "i1", incarnation, load, [&](absl::Status status) { result.set_value(status); });
    return result.get_future().get();
  }
  absl::Status Deregister(const std::string& name) {
    std::promise<absl::Status> result;
    loop_->Deregister(name, "i1", [&](absl::Status status) { result.set_value(status); });
    return result.get_future().get();
  }

  FakeClock clock_;
  RealClock real_clock_;
  Metrics metrics_;
  std::unique_ptr<BrokerLoop> loop_;
  std::optional<absl::Duration> retry_after_;
};

TEST_F(BrokerLoopTest, WatcherGetsSnapshotThenEveryChangeWithVersionsThatCountByOne) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  auto watcher = std::make_shared<KeepingWatcher>();
  loop_->Watch(watcher);
  ASSERT_TRUE(Register(EngineNamed("b")).ok());
  ASSERT_TRUE(Heartbeat("b", {.running_requests = 3, .steps_total = 1}).ok());
  ASSERT_TRUE(Deregister("a").ok());
  const std::vector<WatchEvent> events = watcher->WaitFor(4);
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_THAT(std::get<WatchEvent::Snapshot>(events[0].what), SizeIs(1));
  EXPECT_EQ(std::get<membership::EngineStatus>(events[1].what).info.name, "b");
  EXPECT_EQ(std::get<membership::EngineStatus>(events[2].what).load.running_requests, 3);
  EXPECT_EQ(std::get<WatchEvent::Gone>(events[3].what).name, "a");
  EXPECT_FALSE(std::get<WatchEvent::Gone>(events[3].what).died);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].version, events[0].version + static_cast<int64_t>(i));
    EXPECT_EQ(events[i].incarnation, "inc-1");
  }
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
  EXPECT_EQ(std::get<WatchEvent::Gone>(events[2].what).name, "a");
  EXPECT_TRUE(std::get<WatchEvent::Gone>(events[2].what).died);
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

TEST(BrokerLoopOptionsTest, OptionsOutOfRangeAreRefused) {
  RealClock clock;
  Metrics metrics;
  EXPECT_EQ(BrokerLoop::Create({.incarnation = ""}, clock, metrics).status().code(),
            absl::StatusCode::kInvalidArgument);
  Options options{.incarnation = "x"};
  options.membership.heartbeat_misses = 0;
  EXPECT_EQ(BrokerLoop::Create(options, clock, metrics).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::broker::loop
