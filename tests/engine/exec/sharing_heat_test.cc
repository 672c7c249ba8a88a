// SPDX-License-Identifier: Apache-2.0
// Donors hear how much of what lies in their memory was used lately.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

// Conversations that own memory has room for two of, and two leases; blocks came to lease 7, none to lease 8.
class SharingHeatTest : public testing::Test {
 protected:
  SharingHeatTest() : harness_({.num_blocks = 20}) {
    harness_.coordinator().OnTerms({.ttl = absl::Hours(10), .scale_down_window = absl::Hours(1)});
    for (const int64_t lease : {7, 8}) harness_.Borrow(lease, 64);
    harness_.Converse(4, /*output_tokens=*/8);
  }
  void Pass(absl::Duration time) {
    harness_.clock().Advance(time);
    harness_.loop().ServeBetweenSteps();
    harness_.AwaitCoordinator();
  }
  int64_t HeatOf(int64_t lease) { return harness_.transport().HeatOf(kv::LeaseId(lease)).value_or(-1); }
  int Said(const std::string& lease) { return harness_.transport().log().Count("SendRenewal " + lease); }

  SharingHarness harness_;
};

TEST_F(SharingHeatTest, OfEachLeaseWithinASecond) {
  Pass(absl::Seconds(1));
  EXPECT_GT(HeatOf(7), 0);
  EXPECT_EQ(HeatOf(8), 0);
}

TEST_F(SharingHeatTest, OnceWhileNothingIsUsed) {
  for (int i = 0; i < 10; ++i) Pass(absl::Seconds(1));
  const int said = Said("7");
  for (int i = 0; i < 10; ++i) Pass(absl::Seconds(1));
  EXPECT_EQ(Said("7"), said);
  EXPECT_EQ(Said("8"), 1);
}

TEST_F(SharingHeatTest, TheLoopWakesToSayWhatChanged) {
  Pass(absl::Seconds(1));
  Pass(absl::Milliseconds(1));
  EXPECT_LE(harness_.loop().NextWakeup(), harness_.clock().Now() + absl::Seconds(1));
  Pass(absl::Seconds(1));
  EXPECT_GT(harness_.loop().NextWakeup(), harness_.clock().Now() + absl::Seconds(2)) << "and then sleeps";
}

TEST_F(SharingHeatTest, WhatIsUsedAgainIsHotter) {
  Pass(absl::Seconds(1));
  const int64_t before = HeatOf(7);
  std::vector<int32_t> prompt = harness_.Prompt(1);
  prompt.push_back(5);
  (void)harness_.Add(prompt, 1);
  harness_.RunAll();
  Pass(absl::Seconds(1));
  EXPECT_GT(HeatOf(7), before);
}

}  // namespace
}  // namespace swiftcache::engine::exec
