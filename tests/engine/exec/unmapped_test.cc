// SPDX-License-Identifier: Apache-2.0
// Leases over a transport that maps nothing: what lies there can be had by loads and streams alone.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kUnmappedLayers = 10, kAnswerTokens = 8;

// An engine whose first conversations lie in the leases of two donors.
class UnmappedTest : public testing::Test {
 protected:
  UnmappedTest()
      : harness_({.model = {.num_layers = kUnmappedLayers, .block_tokens = 4},
                  .num_blocks = 20,
                  .stream = StreamMode::kAuto,
                  .mapped = false}) {
    for (const int64_t id : {7, 8}) harness_.Borrow(id, 20);
    for (unsigned seed = 1; seed <= 6; ++seed) {
      (void)harness_.Add(Prompt(seed), kAnswerTokens);
      harness_.RunAll();
    }
  }
  static std::vector<int32_t> Prompt(unsigned seed) {
    std::mt19937 rng(seed);
    return RandomTokens(rng, 24, 64);
  }
  void GoOn(unsigned seed) {
    std::vector<int32_t> prompt = Prompt(seed);
    prompt.push_back(5);
    const auto recording = harness_.Add(prompt, kAnswerTokens);
    harness_.RunAll();
    EXPECT_TRUE(recording->Wait().ok()) << recording->Wait();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, kAnswerTokens)) << seed;
    donor_tokens_ += recording->output().usage->cached_donor_tokens;
  }
  SharingHarness harness_;
  int64_t donor_tokens_ = 0;
};

TEST_F(UnmappedTest, ADonorIsToldOnceAStepWhatIsStreamedAndNeverALayer) {
  const int64_t steps = harness_.load().steps_total, told = harness_.transport().control_messages();
  harness_.transport().TakeStores();
  GoOn(1);
  GoOn(2);
  EXPECT_GT(donor_tokens_, 0);
  const int64_t messages = harness_.transport().control_messages() - told;
  const int64_t of_steps = 2 * (harness_.load().steps_total - steps);  // donors
  EXPECT_GT(messages, 0);
  EXPECT_LE(messages, 2 * of_steps) << "one for a step's stream, one for the stores beside it";
}

TEST_F(UnmappedTest, ADonorThatFallsSilentInAStepCostsUntilItsLeaseIsGivenUp) {
  int silences = 0;
  harness_.transport().on_silence = [&](kv::LeaseId lease) {
    ++silences;
    harness_.coordinator().OnDonorGone(lease);
    EXPECT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("Abandon ", lease.value())));
  };
  for (const int64_t id : {7, 8}) harness_.transport().Silence(kv::LeaseId(id));
  for (unsigned seed = 1; seed <= 6; ++seed) GoOn(seed);
  EXPECT_GE(silences, 1);
  EXPECT_LE(silences, 2 * kUnmappedLayers) << "what is given up is not waited for again";
  EXPECT_LT(harness_.load().kv_blocks_leased_in, 40);
}

TEST_F(UnmappedTest, BlocksHaveSlotsBeforeTheyAreInLeases) {
  EXPECT_GT(harness_.load().kv_blocks_leased_in_used, 0);
  for (unsigned seed = 1; seed <= 6; ++seed) GoOn(seed);
  EXPECT_GT(donor_tokens_, 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
