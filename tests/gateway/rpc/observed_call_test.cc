// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/observed_call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace swiftcache::gateway::rpc {
namespace {

// Plain members: what is called from two threads at a time is a data race here.
class Recorder final : public fleet::EngineObserver {
 public:
  void OnEvent(fleet::EngineEvent) override {
    EXPECT_EQ(dones, 0);
    ++events;
    if (on_event) on_event();
  }
  void OnDone(absl::Status status) override {
    ++dones;
    end = std::move(status);
  }
  int events = 0, dones = 0;
  absl::Status end;
  std::function<void()> on_event;
};

class ObservedCallTest : public ::testing::Test {
 protected:
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  ObservedCall call_{recorder_};
};

TEST_F(ObservedCallTest, TheFirstEndCountsAndNothingFollowsIt) {
  call_.OnEvent({});
  ASSERT_TRUE(call_.End(absl::CancelledError("first")));
  EXPECT_FALSE(call_.End(absl::OkStatus()));
  call_.OnEvent({});
  EXPECT_EQ(recorder_->dones, 0);
  call_.TellEnd();
  EXPECT_EQ(recorder_->events, 1);
  EXPECT_EQ(recorder_->dones, 1);
  EXPECT_EQ(recorder_->end.message(), "first");
  EXPECT_EQ(recorder_.use_count(), 1) << "it is let go";
}

TEST_F(ObservedCallTest, AnEndWithinAnEventIsToldBehindIt) {
  recorder_->on_event = [this] {
    EXPECT_FALSE(call_.End(absl::CancelledError("enough")));
    EXPECT_EQ(recorder_->dones, 0);
  };
  call_.OnEvent({});
  EXPECT_EQ(recorder_->dones, 1);
  EXPECT_TRUE(absl::IsCancelled(recorder_->end));
}

TEST(ObservedCallThreadsTest, WhoeverEndsItTheObserverHearsOneCallAtATimeAndOneEnd) {
  for (int round = 0; round < 300; ++round) {
    const auto recorder = std::make_shared<Recorder>();
    ObservedCall call(recorder);
    std::atomic<int> told = 0;
    const auto end = [&call, &told](absl::Status why) {
      if (!call.End(std::move(why))) return;
      ++told;
      call.TellEnd();
    };
    std::vector<std::thread> others;
    for (int i = 0; i < 2; ++i) others.emplace_back([&end] { end(absl::CancelledError("cancelled")); });
    for (int i = 0; i < 20; ++i) call.OnEvent({});
    end(absl::OkStatus());
    for (std::thread& other : others) other.join();
    EXPECT_EQ(recorder->dones, 1);
    EXPECT_LE(told, 1) << "none where the end came within an event";
  }
}

}  // namespace
}  // namespace swiftcache::gateway::rpc
