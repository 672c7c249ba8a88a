// SPDX-License-Identifier: Apache-2.0
// Steps that leave out who reads leases, and revocations.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kLeaseId = 7, kNumLayers = 10, kMostOnLeases = 4;

// A stream whose first blocks lie in a lease, beside the prompt of another that reads none. The next step leaves the
// stream out.
class TurnsTest : public testing::Test {
 protected:
  TurnsTest()
      : harness_({.model = {.num_layers = kNumLayers, .block_tokens = 4},
                  .num_blocks = 40,
                  .max_tokens_on_leases = kMostOnLeases}) {
    harness_.Borrow(kLeaseId, 64);
    harness_.Converse(6, 8);
    stream_prompt_ = harness_.Prompt(1);
    stream_prompt_.push_back(5);
    stream_ = harness_.Add(stream_prompt_, kOutput);
    EXPECT_TRUE(harness_.loop().Step());
    other_prompt_ = RandomTokens(99, kOtherTokens, harness_.model().vocab_size);
    other_ = harness_.Add(other_prompt_, kOutput);
  }
  /// The rows of all steps to come that are computed to their end.
  int64_t RunAll() {
    int64_t rows = 0;
    harness_.during_layer = [&](int64_t layer) { rows += layer == kNumLayers - 1 ? harness_.rows() : 0; };
    harness_.RunAll();
    EXPECT_EQ(stream_->tokens(), FakeGreedy(harness_.model(), stream_prompt_, kOutput));
    EXPECT_EQ(other_->tokens(), FakeGreedy(harness_.model(), other_prompt_, kOutput));
    return rows;
  }
  /// The layers of a step in whose third `event` comes.
  int64_t LayersRun(absl::Duration layer_time, const std::function<void()>& event) {
    int64_t layers = 0;
    harness_.during_layer = [&](int64_t layer) {
      layers = layer + 1;
      harness_.clock().Advance(layer_time);
      if (layer == 2) event();
    };
    EXPECT_TRUE(harness_.loop().Step());
    harness_.during_layer = nullptr;
    return layers;
  }

  static constexpr int64_t kOutput = 8, kOtherTokens = 17;
  SharingHarness harness_;
  std::vector<int32_t> stream_prompt_, other_prompt_;
  std::shared_ptr<Recording> stream_, other_;
};

TEST_F(TurnsTest, APromptThatReadsNoLeaseIsComputedInOneStep) {
  EXPECT_TRUE(harness_.loop().Step());
  EXPECT_EQ(harness_.rows(), kOtherTokens);
  EXPECT_EQ(stream_->tokens().size(), 1);
  EXPECT_TRUE(harness_.loop().Step());
  EXPECT_EQ(harness_.rows(), 2);
  EXPECT_EQ(RunAll(), 2 * (kOutput - 2));
}

// What the stream has there is saved, as it would be if the step read it.
TEST_F(TurnsTest, AStepIsCutForTheLeaseOfWhomItLeavesOut) {
  EXPECT_EQ(LayersRun(absl::Milliseconds(2),
                      [&] {
                        harness_.coordinator().OnRevoked(kv::LeaseId(kLeaseId), absl::Milliseconds(60));
                        ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
                      }),
            3);
  EXPECT_EQ(harness_.rows(), kOtherTokens);
  EXPECT_EQ(RunAll(), kOutput - 1 + kOtherTokens + kOutput - 1) << "nothing was computed again";
}

// The copies are done long before, but the step's end is when the loop hears of it.
TEST_F(TurnsTest, AStepIsCutForALeaseOutOfWhichBlocksComeHome) {
  ASSERT_NO_FATAL_FAILURE(harness_.LendAwayAndTakeBack(3, {8, 32}));
  size_t loads = 0;
  EXPECT_EQ(LayersRun(absl::Milliseconds(2),
                      [&] {
                        loads = harness_.transport().loads_under_way();
                        harness_.coordinator().OnRevoked(kv::LeaseId(kLeaseId), absl::Milliseconds(60));
                        ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
                      }),
            3);
  EXPECT_GT(loads, 0);
  EXPECT_EQ(RunAll(), kOutput - 1 + kOtherTokens + kOutput - 1) << "nothing was computed again";
}

TEST_F(TurnsTest, AStepIsNotCutForALeaseThatIsGone) {
  EXPECT_EQ(LayersRun(absl::Milliseconds(20),
                      [&] {
                        harness_.coordinator().OnRevoked(kv::LeaseId(kLeaseId), absl::Milliseconds(50));
                        ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
                        harness_.clock().Advance(absl::Milliseconds(30));
                        harness_.AwaitCoordinator();
                        harness_.AwaitCoordinator();
                        ASSERT_TRUE(harness_.transport().log().WaitFor("SendRelease 7")) << "half of the time is over";
                      }),
            kNumLayers);
  EXPECT_EQ(other_->tokens().size(), 1);
  EXPECT_GT(RunAll(), 2 * (kOutput - 1)) << "the stream lost what it had there";
}

}  // namespace
}  // namespace swiftcache::engine::exec
