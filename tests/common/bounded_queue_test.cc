// SPDX-License-Identifier: Apache-2.0
#include "common/sync/bounded_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace swiftcache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BoundedQueueTest, RefusesWhenFullAndLosesNothing) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.PushUrgent(4);
  EXPECT_THAT(queue.TakeAll(absl::ZeroDuration()), ElementsAre(1, 2, 4));
}

TEST(BoundedQueueTest, CloseWakesTheTakerAndRefusesMore) {
  BoundedQueue<int> queue(2);
  std::thread closer([&] { queue.Close(); });
  EXPECT_THAT(queue.TakeAll(absl::Seconds(60)), IsEmpty());
  closer.join();
  EXPECT_FALSE(queue.TryPush(1));
}

TEST(BoundedQueueTest, PushWakesTheTaker) {
  BoundedQueue<int> queue(2);
  std::thread pusher([&] { queue.TryPush(7); });
  EXPECT_THAT(queue.TakeAll(absl::Seconds(60)), ElementsAre(7));
  pusher.join();
}

}  // namespace
}  // namespace swiftcache
