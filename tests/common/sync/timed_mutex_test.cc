// SPDX-License-Identifier: Apache-2.0
#include "common/sync/timed_mutex.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/sync/mailbox.h"
#include "tests/fakes/stepped_wall_clock.h"

namespace swiftcache {
namespace {

class TimedMutexTest : public testing::Test {
 protected:
  absl::Duration passed() const { return clock_.Now() - begin_; }
  const RealClock clock_;
  const absl::Time begin_ = clock_.Now();
};

TEST_F(TimedMutexTest, AWaitIsAsLongAsItSaysWhereTheWallClockIsSetBack) {
  const SteppedWallClock stepped(/*seconds=*/20);
  TimedMutex mutex;
  {
    TimedMutexLock lock(&mutex);
    const bool never = false;
    EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(30)));
  }
  EXPECT_FALSE(TimedNotification().WaitWithTimeout(absl::Milliseconds(30)));
  EXPECT_TRUE(Mailbox<int>().TakeAll(absl::Milliseconds(30)).empty());
  EXPECT_GE(passed(), absl::Milliseconds(90));
  EXPECT_LT(passed(), absl::Seconds(15));
}

TEST_F(TimedMutexTest, WhoUnlocksWakesWhoseConditionHoldsNow) {
  TimedMutex mutex;
  int value = 0;
  std::thread other([&] {
    for (int i = 1; i <= 3; ++i) {
      absl::SleepFor(absl::Milliseconds(5));
      TimedMutexLock lock(&mutex);
      value = i;
    }
  });
  {
    TimedMutexLock lock(&mutex);
    const auto is_last = [&] { return value == 3; };
    mutex.Await(absl::Condition(&is_last));
    EXPECT_EQ(value, 3);
  }
  other.join();
}

TEST_F(TimedMutexTest, ANotificationIsHeardByAll) {
  TimedNotification stop;
  EXPECT_FALSE(stop.HasBeenNotified());
  std::thread one([&] { EXPECT_TRUE(stop.WaitWithTimeout(absl::Seconds(60))); });
  std::thread two([&] { EXPECT_TRUE(stop.WaitWithTimeout(absl::InfiniteDuration())); });
  stop.Notify();
  one.join();
  two.join();
  EXPECT_TRUE(stop.HasBeenNotified());
}

}  // namespace
}  // namespace swiftcache
