// SPDX-License-Identifier: Apache-2.0
// Everything at once, at random, for a few seconds, with every invariant checked after every step.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "tests/engine/exec/loop_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kVocab = 30;

struct Asked {
  Request request;
  std::shared_ptr<Recording> recording;
  bool cancelled = false;
};

Request RandomRequest(std::mt19937& rng, int64_t arena_tokens) {
  std::mt19937 prefix_rng(rng() % 4);  // one of four prefixes
  std::vector<int32_t> prompt = RandomTokens(prefix_rng, rng() % 40, kVocab);
  for (int32_t token : RandomTokens(rng, 1 + rng() % 20, kVocab)) prompt.push_back(token);
  prompt.resize(std::min<size_t>(prompt.size(), arena_tokens - 1));
  Request request = Greedy(prompt, 1 + rng() % 30);
  request.cache_salt = std::string(rng() % 2, 'x');
  request.priority = rng() % 8 == 0 ? static_cast<int32_t>(rng() % 3) : 0;
  request.n = rng() % 6 == 0 ? 1 + rng() % 4 : 1;
  return request;
}

void CheckOutcome(const FakeModelOptions& model, const Asked& asked) {
  const absl::Status status = asked.recording->Wait();
  EXPECT_EQ(status.ok(), !asked.cancelled) << status;
  const int64_t produced = static_cast<int64_t>(asked.recording->tokens().size());
  const std::vector<int32_t> expected = FakeGreedy(model, asked.request.prompt, produced);
  for (int32_t i = 0; i < asked.request.n && status.ok(); ++i) {
    ASSERT_EQ(asked.recording->tokens(i), expected) << "continuation " << i;
  }
}

void SoakOnce(unsigned seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  HarnessOptions options{
      .model = {.num_layers = 1, .vocab_size = kVocab, .block_tokens = static_cast<int64_t>(1 + rng() % 6)}};
  options.num_blocks = (60 + rng() % 200) / options.model.block_tokens;
  options.engine.max_num_seqs = 1 + rng() % 12;
  options.engine.max_num_batched_tokens = 1 + rng() % 60;
  options.engine.enable_prefix_caching = rng() % 4 != 0;
  LoopHarness harness(options);
  std::map<std::string, Asked> asked;
  for (int step = 0; step < 300; ++step) {
    if (rng() % 3 == 0) {
      const std::string id = std::to_string(asked.size());
      Request request = RandomRequest(rng, options.num_blocks * options.model.block_tokens);
      request.request_id = id;
      asked[id] = {request, harness.Add(request)};
    }
    if (rng() % 10 == 0 && !asked.empty()) {
      const std::string id = std::to_string(rng() % asked.size());
      asked[id].cancelled = asked[id].cancelled || !asked[id].recording->done();
      harness.Cancel(id);
    }
    if (harness.loop().has_work()) harness.Step();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  harness.RunAll();
  for (const auto& [id, one] : asked) CheckOutcome(options.model, one);
}

TEST(SoakTest, RandomWorkLeavesNothingBehindAndNoWrongToken) {
  const char* seconds = std::getenv("SWIFTCACHE_SOAK_SECONDS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds == nullptr ? 3 : std::atoi(seconds));
  unsigned seed = 0;
  do {
    SoakOnce(seed++);
  } while (std::chrono::steady_clock::now() < end && !HasFailure());
  std::cout << seed << " random engines, seeds 0 to " << seed - 1 << "\n";
  EXPECT_GE(seed, 1u);
}

}  // namespace
}  // namespace swiftcache::engine::exec
