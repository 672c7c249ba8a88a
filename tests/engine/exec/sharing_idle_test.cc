// SPDX-License-Identifier: Apache-2.0
// What becomes of leases that nobody uses any more.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

// Conversations that own memory has room for two of, and two leases; blocks came to lease 7, none to lease 8.
class SharingIdleTest : public testing::Test {
 protected:
  static constexpr absl::Duration kWindow = absl::Seconds(10);
  static constexpr int64_t kOutputTokens = 8;

  SharingIdleTest() : harness_({.num_blocks = 20}) {
    harness_.coordinator().OnTerms({.ttl = absl::Hours(10), .scale_down_window = kWindow});
    EXPECT_TRUE(harness_.heard().WaitFor("Terms 10s"));
    harness_.Pump();
    for (const int64_t lease : {7, 8}) harness_.Borrow(lease, 64);
    harness_.Converse(4, kOutputTokens);
  }
  void Pass(int windows) {
    for (int i = 0; i < windows; ++i) {
      harness_.clock().Advance(kWindow);
      harness_.loop().ServeBetweenSteps();
      harness_.AwaitCoordinator();
      harness_.Pump();
      harness_.AwaitCoordinator();  // or what it was told just now would seem late
    }
  }
  // The first conversation goes on; where its prompt was found.
  int64_t TokensFromDonors() {
    std::vector<int32_t> prompt = harness_.Prompt(1);
    prompt.push_back(5);
    const std::shared_ptr<Recording> recording = harness_.Add(prompt, kOutputTokens);
    harness_.RunAll();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, kOutputTokens));
    return recording->output().usage->cached_donor_tokens;
  }
  int Gone(const std::string& lease) const { return harness_.heard().Count("Drain " + lease); }

  SharingHarness harness_;
};

TEST_F(SharingIdleTest, ALeaseThatNobodyUsesForSixteenWindowsIsGivenBack) {
  Pass(15);
  EXPECT_EQ(Gone("7") + Gone("8"), 0);
  Pass(2);
  EXPECT_TRUE(harness_.transport().log().WaitFor("SendRelease 7"));
  EXPECT_TRUE(harness_.transport().log().WaitFor("SendRelease 8"));
  EXPECT_EQ(TokensFromDonors(), 0);
}

TEST_F(SharingIdleTest, ALeaseThatWasUsedIsKeptForAsLongAgain) {
  Pass(10);
  EXPECT_GT(TokensFromDonors(), 0);
  Pass(15);
  EXPECT_EQ(Gone("7"), 0);
  EXPECT_EQ(Gone("8"), 1);
  Pass(3);
  EXPECT_EQ(Gone("7"), 1);
}

TEST_F(SharingIdleTest, WhatWasGivenBackIsNotAskedForAgainWithoutAPrompt) {
  Pass(17);
  ASSERT_EQ(Gone("7") + Gone("8"), 2);
  harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse());  // to whatever was asked before
  harness_.AwaitCoordinator();
  const int64_t asked = harness_.num_requests();
  Pass(40);
  EXPECT_EQ(harness_.num_requests(), asked);
}

TEST_F(SharingIdleTest, TheLoopWakesToLook) {
  EXPECT_LE(harness_.loop().NextWakeup(), harness_.clock().Now() + kWindow);
  Pass(20);
  EXPECT_GT(harness_.loop().NextWakeup(), harness_.clock().Now() + 10 * kWindow) << "there is nothing to look at";
}

}  // namespace
}  // namespace swiftcache::engine::exec
