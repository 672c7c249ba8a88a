// SPDX-License-Identifier: Apache-2.0
// A broker's loop, and a watcher of its tables.
//
//   TEST_F(BrokerLoopTest, ...) { ASSERT_TRUE(Register(EngineNamed("a")).ok()); }
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "broker/loop/broker_loop.h"
#include "tests/broker/engines.h"
#include "tests/fakes/fake_clock.h"

namespace swiftcache::broker::loop {

/// Keeps what it is told, up to `capacity` events.
class KeepingWatcher final : public Watcher {
 public:
  explicit KeepingWatcher(size_t capacity = 1000, std::string instance_id = "")
      : instance_id_(std::move(instance_id)), capacity_(capacity) {}
  const std::string& name() const override { return name_; }
  const std::string& instance_id() const override { return instance_id_; }
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
  const std::string name_ = "test", instance_id_;
  const size_t capacity_;
  absl::Mutex mutex_;
  std::vector<WatchEvent> events_;
  std::vector<absl::Status> closed_;
};

class BrokerLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(clock_, {}); }

  void Start(const Clock& clock, membership::Options membership, size_t max_watchers = 256) {
    Options options{.membership = membership, .incarnation = "inc-1", .max_watchers = max_watchers};
    options.new_capability = [] { return "capability"; };
    options.ledger.elastic.headroom_percent = 0;
    options.ledger.offer_timeout = offer_timeout_;
    auto loop = BrokerLoop::Create(options, clock, metrics_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }
  absl::Status Register(const membership::EngineInfo& info, const std::vector<ledger::Lease>& held = {}) {
    std::promise<absl::Status> result;
    loop_->Register({info, held, {}}, [&](absl::Status status, std::optional<absl::Duration> retry_after) {
      retry_after_ = retry_after;
      result.set_value(status);
    });
    return result.get_future().get();
  }
  absl::Status Heartbeat(const std::string& name, const membership::LoadReport& load,
                         const std::string& incarnation = "inc-1") {
    std::promise<absl::Status> result;
    loop_->Heartbeat({name, "i1", incarnation}, load, [&](const auto& weights) { result.set_value(weights.status()); });
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
  absl::Duration offer_timeout_ = absl::Seconds(3);
};

}  // namespace swiftcache::broker::loop
