// SPDX-License-Identifier: Apache-2.0
// Own memory that came back from a lease, and stays out of use since there is no other memory to lay into its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

class WithheldMemoryTest : public testing::Test {
 protected:
  // Half of the arena is lent; it is needed, and comes back from its borrower.
  void LendHalfAndNeedIt() {
    ASSERT_NO_FATAL_FAILURE(harness_.LendAway(7, {8, 8}));
    for (int i = 0; harness_.transport().log().Count("SendRevoke 7") == 0; ++i) {
      ASSERT_LT(i, 100) << "it is not needed";
      ASSERT_NO_FATAL_FAILURE(Rounds(1));
      harness_.AwaitCoordinator();
    }
    harness_.coordinator().OnReleased(kv::LeaseId(7));
    ASSERT_TRUE(harness_.heard().WaitFor("Withheld 7"));
  }
  void Rounds(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      harness_.Pump();
      (void)harness_.loop().Turn();
      const absl::Status status = harness_.loop().CheckInvariants();
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void FindMemory() {
    {
      absl::MutexLock lock(&mutex_);
      there_is_memory_ = true;
    }
    harness_.clock().Advance(coordinator::MemoryExchange::kAgain);
    ASSERT_TRUE(harness_.heard().WaitFor("TakeBack 7"));
  }
  static std::vector<int32_t> Prompt(unsigned seed) { return RandomTokens(seed, 12, 64); }  // three blocks

  absl::Status Exchange() {
    absl::MutexLock lock(&mutex_);
    return there_is_memory_ ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
  }

  absl::Mutex mutex_;
  bool there_is_memory_ ABSL_GUARDED_BY(mutex_) = false;
  SharingHarness harness_{{.num_blocks = 16, .on_exchange = [this](int64_t, int64_t) { return Exchange(); }}};
};

TEST_F(WithheldMemoryTest, WhoNeedsMoreThanIsLeftIsPreemptedAsInASmallerArena) {
  const auto first = harness_.Add(Prompt(1), 14), second = harness_.Add(Prompt(2), 14);  // seven blocks each
  ASSERT_NO_FATAL_FAILURE(LendHalfAndNeedIt());
  ASSERT_NO_FATAL_FAILURE(Rounds(60));
  EXPECT_EQ(first->tokens(), FakeGreedy(harness_.model(), Prompt(1), 14));
  EXPECT_EQ(second->tokens(), FakeGreedy(harness_.model(), Prompt(2), 14));
  EXPECT_GT(harness_.load().preemptions_total, 0);
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 0);
  EXPECT_EQ(harness_.load().kv_blocks_withheld, 8);
}

TEST_F(WithheldMemoryTest, WhatIsLeftCannotHoldEndsWithAnErrorThatNamesIt) {
  const auto wide = harness_.Add(Prompt(1), 40);  // thirteen blocks
  ASSERT_NO_FATAL_FAILURE(LendHalfAndNeedIt());
  ASSERT_NO_FATAL_FAILURE(Rounds(3));
  EXPECT_FALSE(wide->done());
  harness_.clock().Advance(EngineOptions().lease_patience);
  ASSERT_NO_FATAL_FAILURE(Rounds(3));
  ASSERT_TRUE(wide->done());
  EXPECT_EQ(wide->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(wide->Wait().message()), testing::HasSubstr("own memory holds 32"));
}

TEST_F(WithheldMemoryTest, WhoWaitsForItGoesOnWhenThereIsOtherMemory) {
  const auto wide = harness_.Add(Prompt(1), 40);
  ASSERT_NO_FATAL_FAILURE(LendHalfAndNeedIt());
  ASSERT_NO_FATAL_FAILURE(Rounds(3));
  ASSERT_NO_FATAL_FAILURE(FindMemory());
  ASSERT_NO_FATAL_FAILURE(Rounds(60));
  EXPECT_EQ(wide->tokens(), FakeGreedy(harness_.model(), Prompt(1), 40));
  EXPECT_EQ(harness_.load().kv_blocks_free + harness_.load().kv_blocks_cached, 16);
  EXPECT_EQ(harness_.load().kv_blocks_withheld, 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
