// SPDX-License-Identifier: Apache-2.0
// The first layer of what a step streams, which comes at the end of the step before.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kLongAnswer = 24, kPromptBlocks = 6;

// An engine that has conversations of which the first lies in a lease.
class FirstLayerTest : public testing::TestWithParam<int64_t> {
 protected:
  FirstLayerTest()
      : harness_(
            {.model = {.num_layers = GetParam(), .block_tokens = 4}, .num_blocks = 24, .stream = StreamMode::kLsc}) {
    harness_.Borrow(7, 16);
    harness_.Converse(4, 8);
    before_ = harness_.transport().first_layers();
  }
  void ExpectRight(const Recording& recording) const {
    EXPECT_EQ(recording.tokens(), FakeGreedy(harness_.model(), harness_.Prompt(1), kLongAnswer));
  }
  // By steps since the beginning.
  int64_t loaded() { return harness_.transport().first_layers().loaded - before_.loaded; }
  int64_t found() { return harness_.transport().first_layers().found - before_.found; }

  SharingHarness harness_;
  transport::FakeTransport::FirstLayers before_;
};
INSTANTIATE_TEST_SUITE_P(Layers, FirstLayerTest, testing::Values(2, 3, 4));

TEST_P(FirstLayerTest, ADecodeWaitsForItOnceABlockAndNotOnceAToken) {
  const auto recording = harness_.Add(harness_.Prompt(1), kLongAnswer);
  harness_.RunAll();
  ExpectRight(*recording);
  EXPECT_GT(loaded(), 0) << "something was streamed";
  EXPECT_LE(loaded(), kPromptBlocks);
  EXPECT_GE(found(), 10 * loaded());
}

TEST_P(FirstLayerTest, OfALeaseThatIsLostBetweenStepsNothingIsFound) {
  const auto recording = harness_.Add(harness_.Prompt(1), kLongAnswer);
  while (found() == 0) ASSERT_TRUE(harness_.loop().Step());
  const int64_t before = found();
  harness_.transport().Fence(kv::LeaseId(7));
  harness_.coordinator().OnDonorGone(kv::LeaseId(7));
  ASSERT_TRUE(harness_.PumpUntil([&] { return harness_.load().kv_blocks_leased_in == 0; }));
  harness_.RunAll();
  ExpectRight(*recording);
  EXPECT_EQ(found(), before);
}

TEST_P(FirstLayerTest, NothingIsUnderWayBetweenSteps) {
  const auto recording = harness_.Add(harness_.Prompt(1), kLongAnswer);
  while (harness_.loop().has_work()) {
    (void)harness_.loop().Step();
    EXPECT_EQ(harness_.transport().streams_under_way(), 0);
    harness_.LandStores();
    harness_.loop().ServeBetweenSteps();
  }
  ExpectRight(*recording);
  EXPECT_GT(found(), 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
