// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/asked_again.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace swiftcache::engine::kv {
namespace {

class AskedAgainTest : public testing::Test {
 protected:
  // Of so many blocks that are computed one in `divisor` is asked for again; 0: none.
  void Compute(int64_t blocks, int64_t divisor) {
    for (int64_t i = 1; i <= blocks; ++i) {
      asked_again_.NoteComputed();
      if (divisor > 0 && i % divisor == 0) asked_again_.NoteAsked(1);
    }
  }

  AskedAgain asked_again_;
};

TEST_F(AskedAgainTest, NothingIsExpectedOfAFewBlocks) {
  EXPECT_FALSE(asked_again_.Mostly());
  Compute(AskedAgain::kLeast - 1, 1);
  EXPECT_FALSE(asked_again_.Mostly());
  Compute(1, 1);
  EXPECT_TRUE(asked_again_.Mostly());
}

TEST_F(AskedAgainTest, HalfOfThemAreNotMost) {
  Compute(100, 2);
  EXPECT_FALSE(asked_again_.Mostly());
  asked_again_.NoteAsked(1);
  EXPECT_TRUE(asked_again_.Mostly());
}

TEST_F(AskedAgainTest, WhatIsOlderCountsNoMoreThanWhatWasComputedOfLate) {
  Compute(100, 0);
  asked_again_.NoteAsked(10'000);
  EXPECT_TRUE(asked_again_.Mostly());
  Compute(AskedAgain::kRecent, 0);
  EXPECT_FALSE(asked_again_.Mostly());
}

TEST_F(AskedAgainTest, WhatWasLongAgoIsForgotten) {
  Compute(100 * AskedAgain::kRecent, 1);
  Compute(AskedAgain::kRecent, 0);
  EXPECT_FALSE(asked_again_.Mostly()) << "documents came after chats";
  Compute(100 * AskedAgain::kRecent, 0);
  Compute(AskedAgain::kRecent, 1);
  EXPECT_TRUE(asked_again_.Mostly()) << "and chats after documents";
}

}  // namespace
}  // namespace swiftcache::engine::kv
