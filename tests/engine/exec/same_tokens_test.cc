// SPDX-License-Identifier: Apache-2.0
// The test that finds every wrong-KV bug: a prompt's tokens do not depend on what runs beside it, on how it was cut, on
// what was cached, preempted or evicted. The fake model computes them from the bytes in the blocks, the oracle without
// any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/engine/exec/loop_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kOutputTokens = 24;

// Random lengths, prefixes shared by some, three salts.
std::vector<Request> Prompts() {
  std::mt19937 rng(32);
  std::vector<std::vector<int32_t>> prefixes;
  for (int64_t length : {0, 7, 16, 33, 48}) prefixes.push_back(RandomTokens(rng, length, kSmallModel.vocab_size));
  std::vector<Request> requests;
  for (int i = 0; i < 32; ++i) {
    std::vector<int32_t> prompt = prefixes[rng() % prefixes.size()];
    const std::vector<int32_t> own = RandomTokens(rng, 1 + rng() % 60, kSmallModel.vocab_size);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(Greedy(prompt, kOutputTokens));
    requests.back().cache_salt = std::string(i % 3, 's');
  }
  return requests;
}

struct Outcome {
  std::vector<std::vector<int32_t>> tokens;  // by prompt
  EngineLoad load;
  int64_t cached_tokens = 0;
};

// All prompts in random order; some arrive while others run.
Outcome RunBatched(const HarnessOptions& options, unsigned seed) {
  std::mt19937 rng(seed);
  LoopHarness harness(options);
  std::vector<size_t> order(32);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), rng);
  const std::vector<Request> requests = Prompts();
  std::vector<std::shared_ptr<Recording>> recordings(requests.size());
  for (size_t i : order) {
    recordings[i] = harness.Add(requests[i]);
    for (int steps = rng() % 3; steps > 0; --steps) harness.Step();
  }
  harness.RunAll();
  Outcome outcome{.tokens = {}, .load = harness.load()};
  for (const auto& recording : recordings) {
    EXPECT_TRUE(recording->Wait().ok());
    outcome.tokens.push_back(recording->tokens());
    outcome.cached_tokens += recording->output().usage->cached_local_tokens;
  }
  return outcome;
}

class SameTokensTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    expected_ = new std::vector<std::vector<int32_t>>;
    for (const Request& request : Prompts()) {
      expected_->push_back(FakeGreedy(kSmallModel, request.prompt, kOutputTokens));
    }
  }
  static void TearDownTestSuite() { delete expected_; }
  static std::vector<std::vector<int32_t>>* expected_;
};
std::vector<std::vector<int32_t>>* SameTokensTest::expected_ = nullptr;

TEST_F(SameTokensTest, AloneTheEngineGeneratesWhatTheOracleSays) {
  const std::vector<Request> requests = Prompts();
  for (size_t i = 0; i < requests.size(); ++i) {
    LoopHarness harness({.model = kSmallModel});
    const auto recording = harness.Add(requests[i]);
    harness.RunAll();
    ASSERT_EQ(recording->tokens(), (*expected_)[i]) << "prompt " << i;
  }
}

TEST_F(SameTokensTest, ChunkBatchAndCacheChangeNothing) {
  for (bool caching : {false, true}) {
    for (int64_t chunk : {1, 7, 64, 512}) {
      HarnessOptions options{.model = kSmallModel};
      options.engine.max_num_batched_tokens = chunk;
      options.engine.enable_prefix_caching = caching;
      const Outcome outcome = RunBatched(options, chunk);
      EXPECT_EQ(outcome.tokens, *expected_) << "chunk " << chunk << " caching " << caching;
      EXPECT_EQ(outcome.cached_tokens > 0, caching) << "shared prefixes are found, if anything is looked for";
      EXPECT_EQ(outcome.load.preemptions_total, 0);
    }
  }
}

TEST_F(SameTokensTest, PreemptionAndEvictionChangeNothing) {
  for (bool caching : {false, true}) {
    for (int64_t chunk : {7, 64, 512}) {
      // The longest sequence is 48 + 60 + 24 tokens, 33 blocks: three or four of them fill 60.
      HarnessOptions options{.model = kSmallModel, .num_blocks = 60};
      options.engine.max_num_batched_tokens = chunk;
      options.engine.enable_prefix_caching = caching;
      const Outcome outcome = RunBatched(options, chunk);
      EXPECT_EQ(outcome.tokens, *expected_) << "chunk " << chunk << " caching " << caching;
      EXPECT_GT(outcome.load.preemptions_total, 0) << "the arena was meant to be too small";
      EXPECT_EQ(outcome.load.evicted_blocks_total > 0, caching) << "the arena was meant to be too small";
    }
  }
}

TEST_F(SameTokensTest, AnArenaForOneSequenceOnlyIsEnough) {
  HarnessOptions options{.model = kSmallModel, .num_blocks = 33};
  const Outcome outcome = RunBatched(options, 5);
  EXPECT_EQ(outcome.tokens, *expected_);
  EXPECT_GT(outcome.load.evicted_blocks_total, 0);
}

TEST_F(SameTokensTest, OtherBlockSizesLayersAndTypesChangeNothing) {
  for (int64_t block_tokens : {1, 3, 16, 64}) {
    HarnessOptions options{.model = kSmallModel, .num_blocks = 200 / block_tokens + 4};
    options.model.block_tokens = block_tokens;
    options.model.dtype = backend::KvDtype::kF32;
    options.engine.max_num_batched_tokens = 50;
    EXPECT_EQ(RunBatched(options, 9).tokens, *expected_) << "block_tokens " << block_tokens;
  }
}

TEST_F(SameTokensTest, CancellationsAtRandomPointsChangeNothingForTheOthers) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 rng(seed);
    HarnessOptions options{.model = kSmallModel, .num_blocks = 70};
    options.engine.max_num_batched_tokens = 40;
    LoopHarness harness(options);
    const std::vector<Request> requests = Prompts();
    std::vector<std::shared_ptr<Recording>> recordings;
    for (size_t i = 0; i < requests.size(); ++i) {
      Request request = requests[i];
      request.request_id = std::to_string(i);
      recordings.push_back(harness.Add(request));
    }
    std::vector<bool> cancelled(requests.size(), false);
    while (harness.loop().has_work()) {
      harness.Step();
      if (rng() % 4 != 0) continue;
      const size_t victim = rng() % requests.size();
      if (recordings[victim]->done()) continue;
      const int64_t used = harness.load().kv_blocks_used;
      harness.Cancel(std::to_string(victim));
      EXPECT_LE(harness.load().kv_blocks_used, used);
      EXPECT_EQ(recordings[victim]->Wait().code(), absl::StatusCode::kCancelled);
      cancelled[victim] = true;
    }
    harness.ExpectNothingHeld();
    ASSERT_GT(std::count(cancelled.begin(), cancelled.end(), true), 3);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!cancelled[i]) {
        EXPECT_EQ(recordings[i]->tokens(), (*expected_)[i]) << "prompt " << i << " seed " << seed;
      } else {
        const std::vector<int32_t> begun = recordings[i]->tokens();
        EXPECT_TRUE(std::equal(begun.begin(), begun.end(), (*expected_)[i].begin()));
      }
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
