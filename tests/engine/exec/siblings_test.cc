// SPDX-License-Identifier: Apache-2.0
// Requests for several continuations, and leases that leave while these begin.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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
    auto live = std::make_unique<LiveRequest>();
    live->arrival_time = harness_.clock().Now();
    live->request = Greedy(prompt, kEachTokens);
    live->request.request_id = "two";
    live->request.n = 2;
    live->max_total_tokens = static_cast<int64_t>(prompt.size()) + kEachTokens;
    live->sink = std::make_unique<RecordingSink>(recording);
    harness_.loop().Accept(std::move(live));
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

}  // namespace
}  // namespace swiftcache::engine::exec
