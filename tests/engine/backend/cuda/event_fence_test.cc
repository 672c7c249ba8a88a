// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/event_fence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/backend/cuda/step_fence.h"
#include "tests/engine/backend/cuda/cuda_harness.h"

namespace swiftcache::engine::backend::cuda {
namespace {

class EventFenceTest : public testing::Test {
 protected:
  EventFenceTest() { arena_ = MakeArena(driver_, {.bytes = 2 * kUnit, .block_bytes = kUnit}); }
  // A stream that has something to do, and the fence behind it.
  std::shared_ptr<EventFence> Busy(Stream stream) {
    EXPECT_TRUE(driver_.Zero(stream, ToNumber(arena_->base()), kUnit).ok());
    auto fence = EventFence::Create(driver_).value();
    EXPECT_TRUE(fence->Record(stream).ok());
    return fence;
  }
  // What `stream` does waits for `done`, and the host does not. The driver is paused, and goes on.
  void ExpectOrdered(Stream stream, const Fence& done) {
    EXPECT_TRUE(IsOrderable(driver_, done));
    ASSERT_TRUE(OrderBehind(driver_, stream, done).ok());
    const auto behind = EventFence::Create(driver_).value();
    ASSERT_TRUE(behind->Record(stream).ok());
    EXPECT_FALSE(behind->Passed());
    driver_.Resume();
    behind->Wait();
  }

  FakeCudaDriver driver_;
  std::unique_ptr<CudaArena> arena_;
};

TEST_F(EventFenceTest, PassesWhenItsStreamHasDoneWhatWasGivenBefore) {
  const Stream stream = driver_.CreateStream().value();
  driver_.Pause();
  const Fence fence(Busy(stream));
  EXPECT_FALSE(fence.Passed());
  driver_.Resume();
  fence.Wait();
  EXPECT_TRUE(fence.Passed());
  driver_.DestroyStream(stream);
  EXPECT_TRUE(fence.Passed());
}

TEST_F(EventFenceTest, OneThatWasNeverRecordedDoesNotPassAndIsNotWaitedFor) {
  const Fence fence(EventFence::Create(driver_).value());
  EXPECT_FALSE(fence.Passed());
  fence.Wait();
  EXPECT_FALSE(fence.Passed());
}

TEST_F(EventFenceTest, OneWhoseWaitFailsIsNotWaitedForAndNeverPasses) {
  const Stream stream = driver_.CreateStream().value();
  driver_.Pause();
  const auto fence = Busy(stream);
  driver_.FailAt(1);
  EXPECT_FALSE(fence->Passed());
  driver_.FailAt(1);
  EXPECT_EQ(fence->Ask().status().code(), absl::StatusCode::kInternal);
  driver_.FailAt(1);
  EXPECT_EQ(fence->Synchronize().code(), absl::StatusCode::kInternal);
  fence->Wait();
  driver_.Resume();
  EXPECT_EQ(fence->Synchronize().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(fence->Passed());
  EXPECT_EQ(OrderBehind(driver_, stream, Fence(fence)).code(), absl::StatusCode::kAborted);
  driver_.DestroyStream(stream);
}

TEST_F(EventFenceTest, OfALostDeviceOneDoesNotPassUnlessItHas) {
  const Stream stream = driver_.CreateStream().value();
  const auto before = Busy(stream);
  before->Wait();
  driver_.Pause();
  const auto after = Busy(stream);
  driver_.Lose();
  EXPECT_EQ(after->Synchronize().code(), absl::StatusCode::kDataLoss);
  after->Wait();
  EXPECT_FALSE(after->Passed());
  EXPECT_TRUE(before->Passed());
  driver_.DestroyStream(stream);
}

TEST_F(EventFenceTest, AStreamWaitsForAnotherWithoutTheHost) {
  const Stream first = driver_.CreateStream().value(), second = driver_.CreateStream().value();
  driver_.Pause();
  const Fence done(Busy(first));
  ExpectOrdered(second, done);
  EXPECT_TRUE(done.Passed());
  driver_.DestroyStream(first);
  driver_.DestroyStream(second);
}

// As layer streaming does, which measures how long the host waits.
TEST_F(EventFenceTest, AStreamWaitsForTheEventThatAFenceStandsFor) {
  struct StandsFor final : FenceState {
    explicit StandsFor(Fence what) : what(std::move(what)) {}
    bool Passed() const override { return what.Passed(); }
    void Wait() const override { ADD_FAILURE() << "the host waits"; }
    const FenceState* stands_for() const override { return what.state(); }
    const Fence what;
  };
  const Stream first = driver_.CreateStream().value(), second = driver_.CreateStream().value();
  driver_.Pause();
  const Fence done(std::make_shared<const StandsFor>(Fence(std::make_shared<const StandsFor>(Fence(Busy(first))))));
  ExpectOrdered(second, done);
  EXPECT_TRUE(done.Passed());
  EXPECT_TRUE(IsOrderable(driver_, Fence(std::make_shared<const StandsFor>(Fence()))));
  driver_.DestroyStream(first);
  driver_.DestroyStream(second);
}

// As that of a transfer is, once it is given up.
TEST_F(EventFenceTest, TheEventThatAFenceStandsForMayBeGoneWhenItIsAskedAgain) {
  struct Fickle final : FenceState {
    explicit Fickle(Fence what) : what(std::move(what)) {}
    bool Passed() const override { return what.Passed(); }
    void Wait() const override { host_waits = true; }
    const FenceState* stands_for() const override { return std::exchange(answers, false) ? what.state() : nullptr; }
    const Fence what;
    mutable bool answers = true, host_waits = false;
  };
  const Stream first = driver_.CreateStream().value(), second = driver_.CreateStream().value();
  driver_.Pause();
  const auto fickle = std::make_shared<const Fickle>(Fence(Busy(first)));
  const Fence done(fickle);
  EXPECT_TRUE(OrderBehind(driver_, second, done).ok());
  EXPECT_FALSE(fickle->host_waits);
  driver_.Resume();
  driver_.Finish(first);
  EXPECT_TRUE(OrderBehind(driver_, second, done).ok());
  EXPECT_TRUE(fickle->host_waits);
  driver_.DestroyStream(first);
  driver_.DestroyStream(second);
}

TEST_F(EventFenceTest, AStreamDoesNotWaitForWhatTheHostDoesBehindAnEvent) {
  const Stream first = driver_.CreateStream().value(), second = driver_.CreateStream().value();
  StepFences fences(driver_, first);
  bool done = false;
  fences.WhenDone([&] { done = true; });
  driver_.Pause();
  ASSERT_TRUE(driver_.Zero(first, ToNumber(arena_->base()), kUnit).ok());
  const Fence step = fences.Record();
  ExpectOrdered(second, step);
  EXPECT_FALSE(done);
  step.Wait();
  EXPECT_TRUE(done);
  const Fence refused = fences.Failed(absl::InternalError("refused"));
  EXPECT_FALSE(IsOrderable(driver_, refused));
  EXPECT_EQ(OrderBehind(driver_, second, refused).code(), absl::StatusCode::kAborted);
  driver_.DestroyStream(first);
  driver_.DestroyStream(second);
}

TEST_F(EventFenceTest, WhatIsDueIsDoneOnceInOrderAndMaySayMore) {
  const Stream stream = driver_.CreateStream().value();
  StepFences fences(driver_, stream);
  std::vector<int> done;
  fences.WhenDone([&] {
    done.push_back(1);
    fences.WhenDone([&] { done.push_back(3); });  // behind the next fence: a lock held meanwhile would never come free
  });
  fences.WhenDone([&] { done.push_back(2); });
  const Fence first = fences.Record();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) waiters.emplace_back([first] { first.Wait(); });
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(done, std::vector<int>({1, 2}));
  fences.Record().Wait();
  EXPECT_EQ(done, std::vector<int>({1, 2, 3}));
  driver_.DestroyStream(stream);
}

// Somebody who saw a step's fence pass is at what is due behind it.
class LateActTest : public EventFenceTest {
 protected:
  LateActTest() : stream_(driver_.CreateStream().value()), fences_(driver_, stream_) {}
  ~LateActTest() override { driver_.DestroyStream(stream_); }
  // `act` waits, when it is done or when what it holds is given back, for go_on_.
  void BeginActs(std::function<void()> act) {
    fences_.WhenDone(std::move(act));
    step_ = fences_.Record();
    somebody_ = std::thread([fence = step_] { fence.Wait(); });
    begun_.WaitForNotification();
  }
  void WaitAndFinish() {
    begun_.Notify();
    go_on_.WaitForNotification();
    finished_ = true;
  }
  void ExpectAwaited(const Fence& fence) {
    absl::Notification passed;
    std::thread waiter([&] {
      fence.Wait();
      EXPECT_TRUE(finished_);
      passed.Notify();
    });
    EXPECT_FALSE(passed.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
    go_on_.Notify();
    waiter.join();
    somebody_.join();
  }

  const Stream stream_;
  StepFences fences_;
  Fence step_;
  std::thread somebody_;
  absl::Notification begun_, go_on_;
  std::atomic<bool> finished_ = false;
};

TEST_F(LateActTest, ALaterFenceWaitsForTheLastActToo) {
  BeginActs([this] { WaitAndFinish(); });
  ExpectAwaited(fences_.Record());
}

TEST_F(LateActTest, WhatAnActHoldsIsGivenBackBeforeItsFencePasses) {
  std::shared_ptr<void> held(nullptr, [this](void*) { WaitAndFinish(); });
  BeginActs([held = std::move(held)] {});
  ExpectAwaited(step_);
}

TEST_F(EventFenceTest, AFenceOfAnotherDriverIsWaitedForHere) {
  FakeCudaDriver other;
  const Stream theirs = driver_.CreateStream().value(), ours = other.CreateStream().value();
  const Fence done(Busy(theirs));
  EXPECT_TRUE(OrderBehind(other, ours, done).ok());
  EXPECT_TRUE(done.Passed());
  const Fence failed(EventFence::Create(driver_).value());
  EXPECT_EQ(OrderBehind(other, ours, failed).code(), absl::StatusCode::kAborted);
  driver_.DestroyStream(theirs);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
