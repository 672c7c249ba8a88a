// SPDX-License-Identifier: Apache-2.0
// Requests for several continuations: one that is cancelled alone, and leases that leave while these begin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/exec/loop_harness.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kLeaving = 7, kNext = 8, kBlocks = 20, kChunk = 6, kEachTokens = 4;

class SiblingsTest : public testing::Test {
 protected:
  SiblingsTest()
      : harness_({.model = {.num_layers = 10, .block_tokens = 4},
                  .num_blocks = kBlocks,
                  .stream = StreamMode::kLsc,
                  .max_tokens_on_leases = kChunk}) {}
  std::shared_ptr<Recording> AddTwo(const std::vector<int32_t>& prompt) {
    auto recording = std::make_shared<Recording>();
    Request request = Greedy(prompt, kEachTokens);
    request.request_id = "two";
    request.n = 2;
    harness_.loop().Accept(std::make_unique<LiveRequest>(request, std::make_unique<RecordingSink>(recording),
                                                         harness_.clock().Now(),
                                                         static_cast<int64_t>(prompt.size()) + kEachTokens));
    return recording;
  }
  void StepOnce() {
    harness_.Pump();
    if (harness_.loop().Step()) computed_ += harness_.rows();
    harness_.LandStores();
    harness_.loop().ServeBetweenSteps();
  }

  SharingHarness harness_;
  int64_t computed_ = 0;  // tokens
};

// Four own blocks are slots for what is leased: 36 blocks are all there is, of which the prompt takes 33. Its last
// chunk is computed while blocks move out of the lease, a few in each slice of time.
TEST_F(SiblingsTest, TheyWaitForMemoryWhereTheLeaseOfTheirPromptLeaves) {
  harness_.Borrow(kLeaving, kBlocks);
  const std::vector<int32_t> prompt = RandomTokens(1, 33 * 4, harness_.model().vocab_size);
  const std::shared_ptr<Recording> recording = AddTwo(prompt);
  for (int steps = 0; steps < 100 && computed_ < 130; ++steps) StepOnce();
  ASSERT_EQ(computed_, 130) << "the last block has room for the rest";
  harness_.coordinator().OnRevoked(kv::LeaseId(kLeaving), absl::Seconds(10));
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  harness_.clock().Advance(absl::Seconds(3));
  harness_.transport().on_await = [&] { harness_.clock().Advance(absl::Milliseconds(6)); };
  StepOnce();
  ASSERT_EQ(computed_, 132) << "one has its first token, and the other begins";
  ASSERT_TRUE(harness_.PumpUntil([&] {
    StepOnce();
    return harness_.load().kv_blocks_leased_in == 0;
  }));
  harness_.Borrow(kNext, kBlocks);
  harness_.RunAll();
  EXPECT_TRUE(recording->Wait().ok()) << recording->Wait();
  for (const int32_t index : {0, 1}) {
    EXPECT_EQ(recording->output(index).tokens, FakeGreedy(harness_.model(), prompt, kEachTokens)) << index;
  }
}

class CancelOneTest : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 40;

  // Three tokens each, after which all three run.
  std::shared_ptr<Recording> Begin(LoopHarness& harness) {
    Request request = Greedy(RandomTokens(1, 9, kSmallModel.vocab_size), kTokens);
    request.request_id = "three";
    request.n = 3;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    auto recording = harness.Add(request);
    for (int i = 0; i < 4; ++i) harness.Step();
    return recording;
  }
};

TEST_F(CancelOneTest, ItsBlocksAreFreeAtOnceAndTheOthersKeepTheirTokens) {
  LoopHarness undisturbed({.model = kSmallModel});
  const auto wanted = Begin(undisturbed);
  undisturbed.RunAll();
  for (const int32_t index : {0, 1}) {
    LoopHarness harness({.model = kSmallModel});
    const auto recording = Begin(harness);
    const int64_t used = harness.load().kv_blocks_used;
    harness.Cancel("three", {}, index);
    EXPECT_LT(harness.load().kv_blocks_used, used);
    EXPECT_EQ(recording->output(index).finish, FinishReason::kCancelled);
    const auto tokens = static_cast<int64_t>(recording->tokens(index).size());
    EXPECT_EQ(recording->output(index).usage->completion_tokens, tokens);
    harness.Cancel("three", {}, index);  // it has ended
    harness.RunAll();
    EXPECT_TRUE(recording->Wait().ok()) << recording->Wait();
    EXPECT_LT(tokens, kTokens);
    EXPECT_THAT(harness.Scrape(), testing::HasSubstr("\nswiftcache_request_generation_tokens_count 2\n"));
    EXPECT_EQ(static_cast<int64_t>(recording->tokens(index).size()), tokens);
    for (const int32_t other : {1 - index, 2}) {
      EXPECT_EQ(recording->tokens(other), wanted->tokens(other)) << other;
      EXPECT_EQ(recording->output(other).finish, FinishReason::kLength);
    }
  }
}

TEST_F(CancelOneTest, TheLastOneEndsTheRequest) {
  LoopHarness harness({.model = kSmallModel});
  const auto recording = Begin(harness);
  for (const int32_t index : {2, 0, 1}) {
    EXPECT_FALSE(recording->done());
    harness.Cancel("three", {}, index);
  }
  EXPECT_TRUE(recording->Wait().ok()) << recording->Wait();
  EXPECT_FALSE(harness.loop().has_work());
  harness.ExpectNothingHeld();
  EXPECT_THAT(harness.Scrape(),
              testing::HasSubstr("swiftcache_requests_finished_total{finished_reason=\"abort\"} 3\n"));
}

// The first has no token yet, the others are not there, or never will be.
TEST_F(CancelOneTest, WhatHasNoTokenGoesOn) {
  LoopHarness harness({.model = kSmallModel});
  Request request = Greedy(RandomTokens(1, 9, kSmallModel.vocab_size), 5);
  request.request_id = "three";
  request.n = 3;
  const auto recording = harness.Add(request);
  for (const int32_t index : {0, 1, -1, 3}) harness.Cancel("three", {}, index);
  harness.Cancel("three", RequestNumber(1), 0);  // of an earlier request of that id
  harness.RunAll();
  for (const int32_t index : {0, 1, 2}) {
    EXPECT_EQ(recording->tokens(index), FakeGreedy(kSmallModel, request.prompt, 5)) << index;
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
