// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/token_list.h"

#include <gtest/gtest.h>

#include <vector>

namespace swiftcache::engine::sched {
namespace {

TEST(TokenListTest, WhereItIsCutNobodySees) {
  const std::vector<int32_t> prompt = {10, 11, 12, 13, 14, 15};
  for (int64_t shared : {0, 2, 4, 6}) {
    const auto cut = prompt.begin() + shared;
    TokenList tokens({prompt.begin(), cut}, {cut, prompt.end()});
    EXPECT_EQ(tokens.back(), 15);
    tokens.push_back(16);
    tokens.push_back(17);
    ASSERT_EQ(tokens.size(), 8);
    EXPECT_EQ(tokens.back(), 17);
    for (int64_t first = 0; first <= 8; ++first) {
      for (int64_t count = 0; first + count <= 8; ++count) {
        std::vector<int32_t> ids = {1}, want = {1};
        tokens.AppendTo(ids, first, count);
        for (int64_t i = 0; i < count; ++i) want.push_back(static_cast<int32_t>(10 + first + i));
        ASSERT_EQ(ids, want) << shared << " shared, from " << first << ", " << count;
      }
    }
    const kv::TokenView view = tokens;
    ASSERT_EQ(view.size(), 8);
    for (int64_t block = 0; block < 4; ++block) {
      EXPECT_EQ(view.Run(2 * block, 2)[0], 10 + 2 * block) << shared << " shared";
      EXPECT_EQ(view.Run(2 * block, 2)[1], 11 + 2 * block) << shared << " shared";
    }
  }
}

TEST(TokenListDeathTest, ABlockLiesInOneRun) {
  const std::vector<int32_t> prompt = {10, 11, 12};
  const TokenList tokens(prompt, {13});
  EXPECT_DEATH((void)kv::TokenView(tokens).Run(2, 2), "lies in two runs");
}

}  // namespace
}  // namespace swiftcache::engine::sched
