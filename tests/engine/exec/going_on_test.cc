// SPDX-License-Identifier: Apache-2.0
// Steps that were cut short go on where they were cut.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/exec/cut_short_fixture.h"

namespace swiftcache::engine::exec {
namespace {

using GoingOnTest = CutShortTest;

// Each piece of a layer's work is asked about.
TEST_F(GoingOnTest, AStepThatGoesOnIsCutSevenTimesMoreAndThenRunsToItsEnd) {
  const auto reader = StartReader();
  RevokeBeforeEachStep();
  const auto nothing = [] {};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(LayersRun(absl::Milliseconds(2), nothing), i % 2 == 0 ? i / 2 + 1 : 0) << i;
    EXPECT_EQ(reader->tokens().size(), 1) << i;
  }
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), nothing), kDeepLayers);
  EXPECT_EQ(reader->tokens().size(), 2) << "there is progress, while the lease is there";
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), nothing), 1) << "and its donor's turn again";
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

TEST_F(GoingOnTest, AStepGoesOnWhereItWasCut) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(60)); }), 3);
  std::vector<int64_t> layers;
  harness_.during_layer = [&](int64_t layer) { layers.push_back(layer); };
  ASSERT_TRUE(harness_.PumpUntil([&] { return harness_.loop().Turn(), reader->tokens().size() > 1; }));
  harness_.during_layer = nullptr;
  EXPECT_EQ(layers, (std::vector<int64_t>{3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(harness_.load().kv_blocks_leased_in, 0) << "it reads what has come home";
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

// What it wrote of their KV is in blocks that are not theirs any more.
TEST_F(GoingOnTest, AStepOfSequencesThatWereResetBeginsAnew) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(200), [&] { LoseDonor(); }), 3);
  int64_t first = -1;
  harness_.during_layer = [&](int64_t layer) { first = first < 0 ? layer : first; };
  ASSERT_TRUE(harness_.PumpUntil([&] { return harness_.loop().Turn(), reader->tokens().size() > 1; }));
  harness_.during_layer = nullptr;
  EXPECT_EQ(first, 0);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

}  // namespace
}  // namespace swiftcache::engine::exec
