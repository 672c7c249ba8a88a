// SPDX-License-Identifier: Apache-2.0
#include "common/http/unsent_bytes.h"

#include <gtest/gtest.h>

#include <memory>

namespace swiftcache::http {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr UnsentBytes::Limits kLimits{.max_bytes = 4 * kMiB, .burst_time = absl::Hours(1)};

std::shared_ptr<ByteBudget> BudgetOf(int64_t bytes) { return std::make_shared<ByteBudget>(bytes); }

TEST(UnsentBytesTest, ABurstIsSixteenTimesAsMuch) {
  UnsentBytes unsent(kLimits, BudgetOf(1024 * kMiB));
  EXPECT_TRUE(unsent.HasRoom(64 * kMiB));
  EXPECT_FALSE(unsent.HasRoom(64 * kMiB + 1));
  unsent.Add(4 * kMiB);
  EXPECT_FALSE(unsent.Behind());
  unsent.Add(1);
  EXPECT_TRUE(unsent.Behind());
  EXPECT_TRUE(unsent.HasRoom(59 * kMiB));
}

TEST(UnsentBytesTest, WhatOthersLeaveUnreadTakesRoomBeyondWhatOneMayAlways) {
  const auto of_all = BudgetOf(8 * kMiB);
  UnsentBytes other(kLimits, of_all), unsent(kLimits, of_all);
  EXPECT_TRUE(unsent.HasRoom(3 * kMiB));
  other.Add(64 * kMiB);  // one response: it is sent however large it is
  EXPECT_TRUE(other.Behind());
  EXPECT_TRUE(unsent.HasRoom(UnsentBytes::kAlwaysBytes));
  EXPECT_FALSE(unsent.HasRoom(UnsentBytes::kAlwaysBytes + 1));
  EXPECT_FALSE(unsent.Behind());
  unsent.Add(UnsentBytes::kAlwaysBytes);
  EXPECT_FALSE(unsent.Behind());
  EXPECT_FALSE(unsent.HasRoom(1));
  unsent.Add(1);
  EXPECT_TRUE(unsent.Behind());
  other.Remove(60 * kMiB);
  EXPECT_FALSE(unsent.Behind());
  EXPECT_FALSE(other.Behind());
  EXPECT_TRUE(unsent.HasRoom(3 * kMiB));
}

TEST(UnsentBytesTest, ASmallerLimitOfOneClientHoldsThoughThereIsRoom) {
  UnsentBytes unsent({.max_bytes = 1000, .burst_time = absl::ZeroDuration()}, BudgetOf(kMiB));
  EXPECT_TRUE(unsent.HasRoom(1000));
  EXPECT_FALSE(unsent.HasRoom(1001));
  unsent.Add(1001);
  EXPECT_TRUE(unsent.Behind());
}

}  // namespace
}  // namespace swiftcache::http
