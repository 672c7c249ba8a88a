// SPDX-License-Identifier: Apache-2.0
#include "common/sync/side_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"

namespace swiftcache {
namespace {

TEST(SideThreads, WhatIsMoreThanMayWaitIsRefusedAndNeverDone) {
  absl::Notification go;
  std::atomic<int> done = 0;
  const std::thread::id here = std::this_thread::get_id();
  {
    SideThreads threads({.threads = 1, .max_waiting_bytes = 100});
    const auto work = [&] {
      go.WaitForNotification();
      EXPECT_NE(std::this_thread::get_id(), here);
      ++done;
    };
    EXPECT_EQ(threads.Run(60, work), absl::OkStatus());
    EXPECT_EQ(threads.Run(40, work), absl::OkStatus());
    const auto held = std::make_shared<int>();
    const absl::Status refused = threads.Run(1, [held] { FAIL() << "done although it was refused"; });
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(held.use_count(), 1);
    EXPECT_EQ(done, 0);
    go.Notify();
  }
  EXPECT_EQ(done, 2) << "the destructor waits for all";
}

TEST(SideThreads, WhatIsDoneMakesRoom) {
  SideThreads threads({.threads = 1, .max_waiting_bytes = 100});
  for (int i = 0; i < 3; ++i) {
    absl::Notification done;
    while (!threads.Run(100, [&] { done.Notify(); }).ok()) {  // until the one before counts as done
      std::this_thread::yield();
    }
    done.WaitForNotification();
  }
}

}  // namespace
}  // namespace swiftcache
