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
  EXPECT_NE(harness_.scrape().find("swiftcache_steps_cut_total 1\n"), std::string::npos);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

// Once nothing lies in leases more could be computed at once: it would be another step.
TEST_F(GoingOnTest, AStepOfAPromptThatWasCutGoesOnWithAsManyRows) {
  SharingHarness harness(
      {.model = {.num_layers = kDeepLayers, .block_tokens = 4}, .num_blocks = 60, .max_tokens_on_leases = 64});
  harness.Borrow(kId, 64);
  harness.Converse(12, kTokens);
  ASSERT_NO_FATAL_FAILURE(harness.LendAwayAndTakeBack(3, {0, 60}));
  std::vector<int32_t> prompt = harness.Prompt(1);
  for (const int32_t id : RandomTokens(5, 100, harness.model().vocab_size)) prompt.push_back(id);
  const auto reader = harness.Add(prompt, kTokens);
  std::vector<int64_t> layers;
  harness.during_layer = [&](int64_t layer) {
    layers.push_back(layer);
    harness.clock().Advance(absl::Milliseconds(2));
    if (layers.size() != 3) return;
    harness.coordinator().OnRevoked(kv::LeaseId(kId), absl::Milliseconds(60));
    ASSERT_TRUE(harness.heard().WaitFor("Drain 7"));
  };
  ASSERT_TRUE(harness.loop().Step());
  EXPECT_EQ(layers.size(), 3);
  EXPECT_EQ(harness.rows(), 64);
  layers.assign({-1, -1, -1});
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.loop().Turn(), layers.size() > 3; }));
  EXPECT_EQ(layers[3], 3);
  EXPECT_EQ(harness.rows(), 64);
  EXPECT_EQ(harness.load().kv_blocks_leased_in, 0);
  harness.during_layer = nullptr;
  harness.RunAll();
  EXPECT_EQ(reader->tokens(), FakeGreedy(harness.model(), prompt, kTokens));
}

// What it wrote of their KV is in blocks that are not theirs any more.
TEST_F(GoingOnTest, AStepOfSequencesThatWereResetBeginsAnew) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(200), [&] { LoseDonor(); }), 3);
  EXPECT_EQ(FirstLayerOf([&] { AwaitTokens(*reader, 2); }), 0);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

// It is of the same tokens as before, but what it wrote is in a block that it gave up meanwhile.
TEST_F(GoingOnTest, AStepOfTheSameTokensInOtherBlocksBeginsAnew) {
  const std::vector<int32_t> prompt = RandomTokens(5, 200, harness_.model().vocab_size);  // own memory is full of it
  const auto reader = harness_.Add(prompt, kTokens);
  while (reader->tokens().empty()) {
    harness_.loop().Turn();
    harness_.LandStores();
  }
  harness_.Borrow(kId + 1, 64);
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(50)); }), 3);
  harness_.Pump();
  harness_.clock().Advance(absl::Milliseconds(25));
  harness_.loop().ServeBetweenSteps();
  ASSERT_EQ(harness_.load().running_requests, 0) << "it reads what was not saved in time";
  harness_.LandStores();  // it was, nearly
  EXPECT_EQ(FirstLayerOf([&] { AwaitTokens(*reader, 2); }), 0);
  EXPECT_EQ(harness_.rows(), 1) << "all before is found where it was saved to";
  harness_.RunAll();
  ExpectRight(*reader, prompt);
}

}  // namespace
}  // namespace swiftcache::engine::exec
