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
  // Looks at each of the two leases, or would.
  void PassASecond() {
    for (int i = 0; i < 2; ++i) {
      harness_.clock().Advance(absl::Milliseconds(500));
      harness_.loop().ServeBetweenSteps();
    }
    harness_.AwaitCoordinator();
  }
  int64_t HeatOf(int64_t lease) { return harness_.transport().HeatOf(kv::LeaseId(lease)).value_or(-1); }
  int Said(const std::string& lease) { return harness_.transport().log().Count("SendRenewal " + lease); }

  SharingHarness harness_;
};

TEST_F(SharingHeatTest, OfEachLeaseWithinASecond) {
  PassASecond();
  EXPECT_GT(HeatOf(7), 0);
  EXPECT_EQ(HeatOf(8), 0);
}

TEST_F(SharingHeatTest, OnceWhileNothingIsUsed) {
  for (int i = 0; i < 10; ++i) PassASecond();
  const int said = Said("7");
  for (int i = 0; i < 10; ++i) PassASecond();
  EXPECT_EQ(Said("7"), said);
  EXPECT_EQ(Said("8"), 1);
}

TEST_F(SharingHeatTest, TheLoopWakesToLookAtWhatRan) {
  EXPECT_LE(harness_.loop().NextWakeup(), harness_.clock().Now() + absl::Milliseconds(500));
  PassASecond();
  EXPECT_GT(harness_.loop().NextWakeup(), harness_.clock().Now() + absl::Seconds(2)) << "and then sleeps";
}

TEST_F(SharingHeatTest, WhileStepsAreLongLeasesHaveTheirTurnsAllTheSame) {
  harness_.clock().Advance(absl::Seconds(1));
  harness_.loop().ServeBetweenSteps();
  harness_.AwaitCoordinator();
  EXPECT_GT(HeatOf(7), 0);
  EXPECT_EQ(HeatOf(8), 0);
}

TEST_F(SharingHeatTest, ALeaseThatComesWhileNothingRunsIsLookedAtToo) {
  PassASecond();
  harness_.Borrow(9, 64);
  for (int i = 0; i < 3; ++i) PassASecond();
  EXPECT_EQ(HeatOf(9), 0);
}

TEST_F(SharingHeatTest, WhatIsUsedAgainIsHotter) {
  PassASecond();
  const int64_t before = HeatOf(7);
  std::vector<int32_t> prompt = harness_.Prompt(1);
  prompt.push_back(5);
  (void)harness_.Add(prompt, 1);
  harness_.RunAll();
  PassASecond();
  EXPECT_GT(HeatOf(7), before);
}

}  // namespace
}  // namespace swiftcache::engine::exec
