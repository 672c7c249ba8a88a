// SPDX-License-Identifier: Apache-2.0
// Who wakes whom, and when the mutex may end.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/sync/timed_mutex.h"

namespace swiftcache {
namespace {

TEST(TimedMutexOrderTest, WhoWaitsWakesThoseWhoWaitForWhatItChangedBefore) {
  TimedMutex mutex;
  bool first = false, second = false;
  std::thread other([&] {
    TimedMutexLock lock(&mutex);
    mutex.Await(absl::Condition(&first));
    second = true;
  });
  absl::SleepFor(absl::Milliseconds(5));
  {
    TimedMutexLock lock(&mutex);
    first = true;
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&second), absl::Seconds(60)));
  }
  other.join();
}

TEST(TimedMutexOrderTest, WhoHasOnlyReadWakesNobody) {
  TimedMutex mutex;
  bool done = false;
  int looks = 0;
  std::thread other([&] {
    const auto looked = [&] {
      ++looks;
      return done;
    };
    TimedMutexLock lock(&mutex);
    mutex.Await(absl::Condition(&looked));
  });
  const auto read = [&] {
    TimedMutexReadLock lock(&mutex);
    return looks;
  };
  while (read() == 0) absl::SleepFor(absl::Milliseconds(1));
  for (int i = 0; i < 1000; ++i) EXPECT_LE(read(), 3) << "but for what the system wakes";
  {
    TimedMutexLock lock(&mutex);
    done = true;
  }
  other.join();
}

TEST(TimedMutexOrderTest, WhoWasWokenMayEndTheMutex) {
  struct Shared {
    TimedMutex mutex;
    bool done = false;
  };
  for (int i = 0; i < 500; ++i) {
    auto shared = std::make_unique<Shared>();
    std::thread other([at = shared.get()] {
      TimedMutexLock lock(&at->mutex);
      at->done = true;
    });
    {
      TimedMutexLock lock(&shared->mutex);
      shared->mutex.Await(absl::Condition(&shared->done));
    }
    shared.reset();
    other.join();
  }
}

TEST(TimedMutexOrderTest, AllWhoWaitAreWoken) {
  TimedMutex mutex;
  bool go = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      TimedMutexLock lock(&mutex);
      EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&go), absl::Seconds(60)));
    });
  }
  {
    TimedMutexLock lock(&mutex);
    go = true;
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace swiftcache
