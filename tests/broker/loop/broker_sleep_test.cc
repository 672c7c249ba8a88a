// SPDX-License-Identifier: Apache-2.0
// A broker that is suspended while it waits for the first of its deadlines.
#include <gtest/gtest.h>

#include <future>

#include "broker/loop/broker_loop.h"
#include "tests/broker/engines.h"

namespace swiftcache::broker::loop {
namespace {

// Stands still until the test moves it, and knows how often it was asked.
class AskedClock final : public Clock {
 public:
  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    ++asked_;
    return now_;
  }
  void AdvanceOnceAsked(int64_t times, absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    const auto asked = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return asked_ >= times; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&asked), absl::Seconds(30))) << asked_;
    now_ += by;
  }

 private:
  mutable absl::Mutex mutex_;
  mutable int64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
};

constexpr int64_t kAskedAtStart = 2;  // when it is made, and before the loop waits
constexpr int64_t kAskedByCall = 3;   // for the message, for what is due, and before the loop waits

class BrokerSleepTest : public ::testing::Test {
 protected:
  BrokerSleepTest() {
    Options options{.membership = {.heartbeat_interval = absl::Seconds(1), .heartbeat_misses = 3},
                    .incarnation = "inc-1"};
    options.new_capability = [] { return "capability"; };
    loop_ = *BrokerLoop::Create(options, clock_, metrics_);
  }
  absl::Status Register(const std::string& name) {
    std::promise<absl::Status> result;
    loop_->Register({EngineNamed(name), {}, {}}, [&](absl::Status status, auto) { result.set_value(status); });
    return result.get_future().get();
  }
  absl::Status Heartbeat(const std::string& name) {
    std::promise<absl::Status> result;
    loop_->Heartbeat({name, "i1", "inc-1"}, {}, [&](const auto& weights) { result.set_value(weights.status()); });
    return result.get_future().get();
  }

  AskedClock clock_;
  Metrics metrics_;
  std::unique_ptr<BrokerLoop> loop_;
};

// "a" is to be heard of a moment later; when the broker goes on, "a" would have been dead for less than an interval.
TEST_F(BrokerSleepTest, WhatItSleepsUntilTheFirstDeadlineIsForgivenToo) {
  ASSERT_TRUE(Register("a").ok());
  clock_.AdvanceOnceAsked(kAskedAtStart + kAskedByCall, absl::Seconds(0.9));
  ASSERT_TRUE(Register("b").ok());
  clock_.AdvanceOnceAsked(kAskedAtStart + 2 * kAskedByCall, absl::Seconds(2.5));
  EXPECT_EQ(Heartbeat("b"), absl::OkStatus());
  EXPECT_EQ(Heartbeat("a"), absl::OkStatus());
}

}  // namespace
}  // namespace swiftcache::broker::loop
