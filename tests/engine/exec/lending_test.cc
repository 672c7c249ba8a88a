// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/lending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kOne = absl::Milliseconds(1);

// Of 256 blocks of 4 tokens 32 are left; a step computes 512 tokens, 128 blocks.
class LendingTest : public testing::Test {
 protected:
  void SetUp() override {
    harness_.LendAway(1, {32, 100});
    harness_.LendAway(2, {132, 60});
    harness_.LendAway(3, {192, 64});
  }
  // 200 blocks: 168 of what is lent, for which all leases are asked back.
  std::vector<int32_t> Prompt() const { return RandomTokens(9, 800, harness_.model().vocab_size); }
  void ReturnAfter(absl::Duration time, int64_t lease) {
    harness_.clock().Advance(time);
    harness_.coordinator().OnReleased(kv::LeaseId(lease));
    ASSERT_TRUE(harness_.heard().WaitFor(absl::StrCat("TakeBack ", lease)));
    harness_.Pump();
  }
  // Needs that are over, and the sum of what they took.
  void ExpectWaits(int64_t count, const std::string& seconds) {
    const std::string scrape = harness_.scrape();
    EXPECT_THAT(scrape, HasSubstr(absl::StrCat("swiftcache_reclaim_wait_seconds_count ", count, "\n")));
    EXPECT_THAT(scrape, HasSubstr(absl::StrCat("swiftcache_reclaim_wait_seconds_sum ", seconds, "\n")));
  }

  SharingHarness harness_{{.model = {.block_tokens = 4}, .num_blocks = 256}};
};

// Each plan is content with what there is for its step, long before the prompt has all that it needs.
TEST_F(LendingTest, ANeedIsMeasuredUntilAllOfItIsBackHoweverOftenTheLoopPlansMeanwhile) {
  const auto recording = harness_.Add(Prompt(), 1);
  EXPECT_FALSE(harness_.loop().Step()) << "the prefill waits for room";
  ASSERT_TRUE(harness_.transport().log().WaitFor("SendRevoke 3"));
  ASSERT_NO_FATAL_FAILURE(ReturnAfter(kOne, 1));
  EXPECT_TRUE(harness_.loop().Step()) << "its first 128 blocks are there";
  ExpectWaits(0, "0");
  ASSERT_NO_FATAL_FAILURE(ReturnAfter(2 * kOne, 2));
  (void)harness_.loop().Step();
  ExpectWaits(0, "0");
  ASSERT_NO_FATAL_FAILURE(ReturnAfter(4 * kOne, 3));
  ExpectWaits(1, "0.007");
  harness_.RunAll();
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), Prompt(), 1));
  ExpectWaits(1, "0.007");
}

TEST_F(LendingTest, ANeedOfWhichTheRequestIsCancelledEndsAndIsNotMeasured) {
  const auto decodes = harness_.Add(RandomTokens(5, 8, harness_.model().vocab_size), 64);  // r0
  ASSERT_TRUE(harness_.loop().Step());
  (void)harness_.Add(Prompt(), 1);  // r1
  for (int i = 0; harness_.transport().log().Count("SendRevoke 3") == 0; ++i) {
    ASSERT_LT(i, 50) << "nothing is needed";
    ASSERT_TRUE(harness_.loop().Step());
    harness_.AwaitCoordinator();
  }
  ASSERT_NO_FATAL_FAILURE(ReturnAfter(kOne, 1));
  harness_.loop().Cancel("r1", {});
  ASSERT_TRUE(harness_.loop().Step());
  ASSERT_NO_FATAL_FAILURE(ReturnAfter(kOne, 2));
  ASSERT_NO_FATAL_FAILURE(ReturnAfter(kOne, 3));
  ExpectWaits(0, "0");
  harness_.LendAway(4, {156, 100});  // while the other one decodes
  EXPECT_EQ(harness_.load().kv_blocks_leased_out, 100);
  EXPECT_FALSE(decodes->done());
}

}  // namespace
}  // namespace swiftcache::engine::exec
