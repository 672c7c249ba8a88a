// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_throttle.h"

#include <gtest/gtest.h>

#include "engine/transport/message_limit.h"

namespace swiftcache::engine::transport {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(1000);

TEST(ShmThrottleTest, BytesFollowEachOtherAtTheLinksRate) {
  ShmThrottle link({.gbps = 8, .latency = absl::Microseconds(5)});  // a byte a nanosecond
  EXPECT_EQ(link.Carry(1000, kNow), kNow + absl::Microseconds(6));
  EXPECT_EQ(link.Carry(2000, kNow), kNow + absl::Microseconds(8));
  EXPECT_EQ(link.Carry(1000, kNow + absl::Seconds(1)), kNow + absl::Seconds(1) + absl::Microseconds(6));
}

TEST(ShmThrottleTest, WithoutARateOnlyTheLatencyIsLeft) {
  ShmThrottle link({.gbps = 0, .latency = absl::Microseconds(5)});
  EXPECT_EQ(link.Carry(1 << 30, kNow), kNow + absl::Microseconds(5));
  EXPECT_EQ(ShmThrottle({}).Carry(1 << 30, kNow), kNow);
}

TEST(MessageLimitTest, AFloodIsOneSecondsTalkTooMany) {
  MessageLimit limit;
  for (int i = 0; i < MessageLimit::kMostASecond; ++i) EXPECT_TRUE(limit.Allow(kNow + absl::Microseconds(i)));
  EXPECT_FALSE(limit.Allow(kNow + absl::Milliseconds(999)));
  EXPECT_TRUE(limit.Allow(kNow + absl::Seconds(1)));
}

TEST(MessageLimitTest, AChannelOfManyLeasesHasSomeForEachAlsoWhileTheyEnd) {
  constexpr int64_t kLeases = 4096;
  MessageLimit limit;
  for (int round = 0; round < 3; ++round) {
    const absl::Time now = kNow + round * absl::Seconds(1);
    for (int64_t i = 0; i < 2 * kLeases; ++i) ASSERT_TRUE(limit.Allow(now, kLeases)) << "all renew at once, twice";
    for (int64_t left = kLeases; left > 0; --left) ASSERT_TRUE(limit.Allow(now, left - 1)) << "each is released";
  }
  for (int64_t i = 0; i < MessageLimit::kMostASecond; ++i) (void)limit.Allow(kNow + absl::Seconds(9));
  EXPECT_FALSE(limit.Allow(kNow + absl::Seconds(9))) << "it has one lease now";
}

}  // namespace
}  // namespace swiftcache::engine::transport
