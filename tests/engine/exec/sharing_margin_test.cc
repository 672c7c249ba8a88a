// SPDX-License-Identifier: Apache-2.0
// Who needs leases while donors take them back asks for what they take beside what it lacks.
#include <gtest/gtest.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

class SharingMarginTest : public testing::Test {
 protected:
  SharingMarginTest() : harness_({.num_blocks = 20}) {
    harness_.coordinator().OnTerms({.ttl = absl::Hours(10), .scale_down_window = absl::Hours(1)});
    harness_.Borrow(7, 40), harness_.Borrow(8, 30);
  }
  void Begin(int64_t blocks) {
    const FakeModelOptions& model = harness_.model();
    (void)harness_.Add(RandomTokens(1, blocks * model.block_tokens, model.vocab_size), 20);
    StepOnce();
  }
  void StepOnce() {
    harness_.Pump();
    harness_.loop().Step();
    harness_.LandStores();
    harness_.loop().ServeBetweenSteps();
    harness_.AwaitCoordinator();
  }
  void TakeBack(int64_t lease) {
    harness_.coordinator().OnRevoked(kv::LeaseId(lease), absl::Milliseconds(50));
    ASSERT_TRUE(harness_.heard().WaitFor(absl::StrCat("Drain ", lease)));
    StepOnce();
    StepOnce();
  }

  SharingHarness harness_;
};

TEST_F(SharingMarginTest, ALongPromptAsksForAsMuchAsWasJustTaken) {
  Begin(40);
  EXPECT_EQ(harness_.num_requests(), 0) << "there are 90 blocks";
  TakeBack(8);
  EXPECT_GT(harness_.num_requests(), 0) << "60 are left, of which it needs 42: not enough if 30 go again";
}

TEST_F(SharingMarginTest, WhatWasTakenLongAgoIsForgotten) {
  TakeBack(8);
  harness_.clock().Advance(absl::Seconds(3));
  Begin(40);
  EXPECT_EQ(harness_.num_requests(), 0);
}

TEST_F(SharingMarginTest, WhoFitsItsOwnMemoryAsksForNothing) {
  Begin(10);
  TakeBack(8);
  EXPECT_EQ(harness_.num_requests(), 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
