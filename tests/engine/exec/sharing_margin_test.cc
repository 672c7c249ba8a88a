// SPDX-License-Identifier: Apache-2.0
// Who needs leases while donors take them back asks for what they take beside what it lacks.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

class SharingMarginTest : public testing::Test {
 protected:
  SharingMarginTest() : harness_({.num_blocks = 20}) {
    harness_.coordinator().OnTerms({.ttl = absl::Hours(10), .scale_down_window = absl::Hours(1)});
    harness_.Borrow(7, 36), harness_.Borrow(8, 30);
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

  // The latest request's; 0: none.
  int64_t asked_blocks() const {
    int64_t blocks = 0;
    for (const std::string& call : harness_.broker().log().calls()) {
      const size_t of = call.starts_with("Request ") ? call.find(" of ") : std::string::npos;
      if (of != std::string::npos) blocks = std::stoll(call.substr(of + 4)) / harness_.block_bytes();
    }
    return blocks;
  }

  SharingHarness harness_;
};

TEST_F(SharingMarginTest, ALongPromptAsksForAsMuchAsWasJustTaken) {
  Begin(40);
  EXPECT_EQ(harness_.num_requests(), 0) << "there are 86 blocks";
  TakeBack(8);
  EXPECT_GT(harness_.num_requests(), 0)
      << "56 are left, of which it needs 40: not enough if as many go again as it lacks of its own";
}

TEST_F(SharingMarginTest, WhatWasTakenLongAgoIsForgotten) {
  TakeBack(8);
  harness_.clock().Advance(absl::Seconds(3));
  Begin(40);
  EXPECT_EQ(harness_.num_requests(), 0);
}

TEST_F(SharingMarginTest, WhoFitsItsOwnMemoryAsksForNothing) {
  Begin(8);
  TakeBack(7), TakeBack(8);
  EXPECT_EQ(harness_.num_requests(), 0) << "20 are its own";
}

TEST_F(SharingMarginTest, WhatWasGivenBackUnaskedIsNoMargin) {
  harness_.coordinator().OnTerms({.ttl = absl::Hours(10), .scale_down_window = absl::Seconds(1)});
  ASSERT_TRUE(harness_.heard().WaitFor("Terms 1s"));
  for (int i = 0; i < 3; ++i) {
    harness_.clock().Advance(absl::Minutes(1));
    StepOnce(), StepOnce();
  }
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 8"));
  StepOnce();
  harness_.Borrow(9, 60);
  Begin(40);
  EXPECT_EQ(harness_.num_requests(), 0);
}

TEST_F(SharingMarginTest, WhoHasEachGrantTakenAwayDoesNotAskForEverMore) {
  TakeBack(7), TakeBack(8);
  harness_.clock().Advance(absl::Seconds(3));
  Begin(40);
  for (int64_t lease = 11; lease < 20; ++lease) {
    harness_.clock().Advance(absl::Milliseconds(250));
    StepOnce();
    const int64_t asked = asked_blocks();
    EXPECT_LE(asked, 2 * (45 - 20)) << "it lacks 20 of its own, and 25 with its answer";
    harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse{});
    harness_.AwaitCoordinator();
    harness_.Borrow(lease, asked);
    StepOnce();
    TakeBack(lease);
  }
}

TEST_F(SharingMarginTest, WhatARequestNeededIsNotAskedForWhenItIsCancelled) {
  TakeBack(7), TakeBack(8);
  harness_.clock().Advance(absl::Seconds(3));
  Begin(40);
  StepOnce();  // its first wish is on its way to the broker, the next one waits
  const int64_t requests = harness_.num_requests();
  ASSERT_GT(requests, 0);
  harness_.loop().Cancel("r0", {});
  for (int i = 0; i < 3; ++i) StepOnce();
  harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse{});
  harness_.AwaitCoordinator();
  for (int i = 0; i < 10; ++i) {
    harness_.clock().Advance(absl::Seconds(1));
    StepOnce();
  }
  EXPECT_EQ(harness_.num_requests(), requests);
}

TEST_F(SharingMarginTest, NorWhatOneNeededThatCameAndWentWithinAStep) {
  (void)harness_.Add(RandomTokens(1, 800, harness_.model().vocab_size), 20);  // 200 blocks, of 86
  harness_.loop().Cancel("r0", {});
  harness_.loop().ServeBetweenSteps();
  harness_.AwaitCoordinator();
  EXPECT_EQ(harness_.num_requests(), 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
