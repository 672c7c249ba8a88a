// SPDX-License-Identifier: Apache-2.0
#include "common/sync/side_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"

namespace swiftcache {
namespace {

TEST(SideThreads, WhereAsMuchWaitsAsMayTheCallerDoesIt) {
  absl::Notification go;
  std::atomic<int> done = 0;
  std::thread::id who;
  {
    SideThreads threads({.threads = 1, .max_waiting = 2});
    for (int i = 0; i < 2; ++i) {
      threads.Run([&] {
        go.WaitForNotification();
        EXPECT_NE(std::this_thread::get_id(), who);
        ++done;
      });
    }
    threads.Run([&] { who = std::this_thread::get_id(); });
    EXPECT_EQ(who, std::this_thread::get_id());
    EXPECT_EQ(done, 0);
    go.Notify();
  }
  EXPECT_EQ(done, 2) << "the destructor waits for all";
}

TEST(SideThreads, WhatIsDoneMakesRoom) {
  SideThreads threads({.threads = 1, .max_waiting = 1});
  const std::thread::id here = std::this_thread::get_id();
  for (int i = 0; i < 3; ++i) {
    bool aside = false;
    while (!aside) {  // until the one before counts as done
      absl::Notification done;
      threads.Run([&] {
        aside = std::this_thread::get_id() != here;
        done.Notify();
      });
      done.WaitForNotification();
    }
  }
}

}  // namespace
}  // namespace swiftcache
