// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/pair_merges.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace swiftcache::gateway::text {
namespace {

using Symbols = std::vector<int32_t>;

/// (left, right) -> (rank, result)
using NaiveTable = std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>>;

/// BPE as it is defined: look at all pairs, merge the best one, begin again.
Symbols NaiveRun(const NaiveTable& table, Symbols symbols) {
  while (true) {
    size_t best = symbols.size();
    int32_t best_rank = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = table.find({symbols[i], symbols[i + 1]});
      if (found == table.end() || (best != symbols.size() && found->second.first >= best_rank)) continue;
      best = i;
      best_rank = found->second.first;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = table.at({symbols[best], symbols[best + 1]}).second;
    symbols.erase(symbols.begin() + static_cast<int64_t>(best) + 1);
  }
}

TEST(PairMerges, TakesTheLowestRankAndThenTheLeftmost) {
  PairMerges merges;
  merges.Add(1, 1, 5, 2);
  merges.Add(2, 1, 0, 3);
  PairMerges::Scratch scratch;
  Symbols symbols = {1, 1, 1, 1};
  merges.Run(&symbols, &scratch);
  EXPECT_EQ(symbols, (Symbols{3, 1}));  // 1 1 -> 2, then 2 1 -> 3 before the other 1 1
}

TEST(PairMerges, LeavesShortInputAlone) {
  PairMerges merges;
  merges.Add(1, 1, 0, 2);
  PairMerges::Scratch scratch;
  Symbols empty, one = {1};
  merges.Run(&empty, &scratch);
  merges.Run(&one, &scratch);
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(one, Symbols{1});
}

// Ranks are random and repeat, so that results do not only grow and ties are common.
TEST(PairMerges, EqualsTheDefinitionOnRandomTables) {
  const uint32_t seed = 4711;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  PairMerges::Scratch scratch;
  for (int round = 0; round < 3000; ++round) {
    PairMerges merges;
    NaiveTable naive;
    const int32_t alphabet = 1 + static_cast<int32_t>(random() % 6);
    for (uint32_t n = random() % 30; n > 0; --n) {
      const int32_t left = static_cast<int32_t>(random() % alphabet), right = static_cast<int32_t>(random() % alphabet);
      const int32_t rank = static_cast<int32_t>(random() % 8), result = static_cast<int32_t>(random() % (alphabet + 2));
      merges.Add(left, right, rank, result);
      naive.emplace(std::pair(left, right), std::pair(rank, result));
    }
    Symbols symbols;
    for (uint32_t n = random() % 40; n > 0; --n) symbols.push_back(static_cast<int32_t>(random() % alphabet));
    Symbols merged = symbols;
    merges.Run(&merged, &scratch);
    ASSERT_EQ(merged, NaiveRun(naive, symbols)) << "round " << round;
  }
}

}  // namespace
}  // namespace swiftcache::gateway::text
