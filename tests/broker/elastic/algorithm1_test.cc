// SPDX-License-Identifier: Apache-2.0
// Walks the lines of Algorithm 1 (SwiftCache, section 3.4).
#include "broker/elastic/algorithm1.h"

#include <gtest/gtest.h>

#include <vector>

namespace swiftcache::broker::elastic {
namespace {

// N_i 10 blocks of B_i 16 tokens; MEU_i 4 worker blocks are MEU_m 3 master blocks.
Resize Up(int64_t request_tokens) { return ScaleUp(10, 16, 4, 3, request_tokens); }
Resize Down(const std::vector<int64_t>& lengths) { return ScaleDown(10, 16, 4, 3, lengths); }

TEST(ScaleUpTest, Lines12And13ARequestThatFitsChangesNothing) {
  EXPECT_EQ(Up(0), (Resize{0, 0}));
  EXPECT_EQ(Up(160), (Resize{0, 0}));  // need == N_i
}

TEST(ScaleUpTest, Line11RoundsTheNeedUpToBlocks) { EXPECT_EQ(Up(161), (Resize{4, 3})); }

TEST(ScaleUpTest, Lines15To17RoundTheDifferenceUpToUnits) {
  EXPECT_EQ(Up(14 * 16), (Resize{4, 3}));      // diff 4, k 1
  EXPECT_EQ(Up(14 * 16 + 1), (Resize{8, 6}));  // diff 5, k 2
  EXPECT_EQ(Up(100 * 16), (Resize{92, 69}));   // diff 90, k 23
}

TEST(ScaleDownTest, Line22TakesTheLongestRequestOfTheWindow) {
  EXPECT_EQ(Down({16, 96, 32}), Down({96}));
  EXPECT_EQ(Down({}), (Resize{8, 6}));  // nothing was asked: diff 10, k 2
}

TEST(ScaleDownTest, Lines24And25AWindowThatNeedsAllChangesNothing) {
  EXPECT_EQ(Down({160}), (Resize{0, 0}));
  EXPECT_EQ(Down({1000}), (Resize{0, 0}));
  EXPECT_EQ(Down({145}), (Resize{0, 0}));  // line 23: need 10
}

TEST(ScaleDownTest, Lines27To29RoundTheDifferenceDownToUnits) {
  EXPECT_EQ(Down({96}), (Resize{4, 3}));  // diff 4, k 1
  EXPECT_EQ(Down({97}), (Resize{0, 0}));  // diff 3, k 0
  EXPECT_EQ(Down({32}), (Resize{8, 6}));  // diff 8, k 2
}

TEST(Algorithm1Test, WhatScaleDownGivesUpNeverStarvesTheLongestRequest) {
  for (int64_t blocks = 0; blocks < 40; ++blocks) {
    for (int64_t tokens = 0; tokens < 700; tokens += 7) {
      const Resize down = ScaleDown(blocks, 16, 3, 5, std::vector{tokens});
      EXPECT_EQ(down.worker_blocks % 3, 0);
      if (down.worker_blocks > 0) {
        EXPECT_EQ(ScaleUp(blocks - down.worker_blocks, 16, 3, 5, tokens), (Resize{0, 0}));
      }
    }
  }
}

}  // namespace
}  // namespace swiftcache::broker::elastic
