// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/reuse_meter.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace swiftcache::engine::kv {
namespace {

constexpr int64_t kOwnBlocks = 32, kTokensInBlock = 2;

std::vector<int32_t> Prompt(int32_t first, int64_t blocks) {
  std::vector<int32_t> tokens(blocks * kTokensInBlock);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

int64_t Found(const Reuse& reuse) { return std::accumulate(reuse.found.begin(), reuse.found.end(), int64_t{0}); }

class ReuseMeterTest : public ::testing::Test {
 protected:
  Reuse LookUp(int32_t prompt, int64_t blocks, const char* salt = "") {
    meter_.LookUp(salt, Prompt(prompt, blocks), blocks, 0);
    return meter_.Take();
  }
  ReuseMeter meter_{kOwnBlocks, kTokensInBlock};
};

TEST_F(ReuseMeterTest, APromptIsAsDeepAsWhatWasUsedSince) {
  EXPECT_EQ(LookUp(100, 4), (Reuse{.looked_up = 4}));
  LookUp(200, 10);
  Reuse again = LookUp(100, 4);
  EXPECT_EQ(again.found[10] + again.found[11] + again.found[12] + again.found[13], 4) << "below the other ten";
  again = LookUp(100, 4);
  EXPECT_EQ(again.found[0] + again.found[1] + again.found[2] + again.found[3], 4);
}

TEST_F(ReuseMeterTest, ACacheOfOwnMemoryLosesTheLastBlocksOfWhatWasUsedFirst) {
  LookUp(100, 4);
  LookUp(200, 30);
  EXPECT_EQ(Found(LookUp(100, 4)), 2) << "of its blocks two are among the 32 used last";
}

TEST_F(ReuseMeterTest, WhatWasComputedIsFoundWhereItsTokensLead) {
  const std::vector<int32_t> prompt = Prompt(100, 3);
  uint64_t key = meter_.LookUp("", std::vector<int32_t>(prompt.begin(), prompt.begin() + 2), 1, 1).key;
  meter_.Use(key = ReuseMeter::Next(key, std::span(prompt).subspan(2, 2)));
  meter_.Use(key = ReuseMeter::Next(key, std::span(prompt).subspan(4, 2)));
  (void)meter_.Take();
  EXPECT_EQ(Found(LookUp(100, 3)), 3);
}

TEST_F(ReuseMeterTest, AnotherSaltIsAnotherPrompt) {
  LookUp(100, 4, "a");
  EXPECT_EQ(Found(LookUp(100, 4, "b")), 0);
  EXPECT_EQ(Found(LookUp(100, 4, "a")), 4);
}

TEST_F(ReuseMeterTest, WhatIsGoneIsMissedUntilItIsUsedAgain) {
  const std::vector<int32_t> prompt = Prompt(100, 4);
  std::vector<uint64_t> keys;
  for (int64_t found = 0; found <= 4; ++found) keys.push_back(meter_.LookUp("", prompt, 4, found).key);
  meter_.NoteGone(keys[3], ReuseMeter::Gone::kForLoan);
  meter_.NoteGone(keys[4], ReuseMeter::Gone::kWithALease);
  ReuseMeter::LookedUp seen = meter_.LookUp("", prompt, 4, 2);
  EXPECT_EQ(seen.found_alone, 4);
  EXPECT_EQ(seen.again_for_loans, 1);
  EXPECT_EQ(seen.again_for_losses, 1);
  seen = meter_.LookUp("", prompt, 4, 2);
  EXPECT_EQ(seen.again_for_loans + seen.again_for_losses, 0);
  meter_.NoteGone(keys[3], ReuseMeter::Gone::kForLoan);
  EXPECT_EQ(meter_.LookUp("", prompt, 4, 3).again_for_loans, 0) << "found";
  meter_.NoteGone(keys[3], ReuseMeter::Gone::kForLoan);
  LookUp(200, 30);
  EXPECT_EQ(meter_.LookUp("", prompt, 4, 0).again_for_loans, 0) << "own memory alone would not have it either";
}

TEST(ReuseTest, TheCacheIsWorthWhatItTakesToComputeAtMostAHundredthMore) {
  Reuse reuse{.looked_up = 2000};
  reuse.found[3] = 900;
  reuse.found[15] = 90;
  EXPECT_EQ(reuse.CacheBlocks(320), 170);
  reuse.looked_up += 8100;  // of 9,110 that were computed the 90 are less than a hundredth
  EXPECT_EQ(reuse.CacheBlocks(320), 50);
  EXPECT_EQ(Reuse{.looked_up = 500}.CacheBlocks(320), 0) << "prompts that never come again are worth no cache";
}

TEST(ReuseTest, WhoFindsLessThanThreeFifthsThrashes) {
  Reuse reuse{.looked_up = 100};
  EXPECT_TRUE(reuse.Thrashes());
  reuse.found[0] = 30;
  reuse.found[31] = 29;
  EXPECT_TRUE(reuse.Thrashes());
  reuse.found[31] = 30;
  EXPECT_FALSE(reuse.Thrashes());
  EXPECT_FALSE(Reuse().Thrashes()) << "nobody asked";
}

}  // namespace
}  // namespace swiftcache::engine::kv
