// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/regular_cache.h"

#include <gtest/gtest.h>

#include <list>
#include <numeric>
#include <random>
#include <set>

namespace swiftcache::engine::kv {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Count(int32_t n, int32_t from = 0) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

// Attach, grow and commit as one step of a sequence would.
int64_t RunThrough(RegularCache& cache, BlockTable& table, const std::string& salt, const Tokens& tokens) {
  const int64_t cached = cache.Attach(table, salt, tokens);
  EXPECT_TRUE(cache.Grow(table, static_cast<int64_t>(tokens.size())));
  cache.Commit(table, tokens, static_cast<int64_t>(tokens.size()));
  return cached;
}

TEST(RegularCacheTest, ASecondPromptFindsTheFullBlocksOfTheFirst) {
  RegularCache cache({.num_blocks = 10, .block_tokens = 4});
  BlockTable first, second;
  EXPECT_EQ(RunThrough(cache, first, "", Count(10)), 0);
  EXPECT_EQ(RunThrough(cache, second, "", Count(10)), 8);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(first[2], second[2]) << "a partial block is never shared";
  EXPECT_EQ(cache.num_used(), 4);
}

TEST(RegularCacheTest, TheLastTokenIsNeverTakenFromTheCache) {
  RegularCache cache({.num_blocks = 10, .block_tokens = 4});
  BlockTable first, second;
  RunThrough(cache, first, "", Count(8));
  EXPECT_EQ(cache.Measure("", Count(8)).blocks, 1);
  EXPECT_EQ(RunThrough(cache, second, "", Count(8)), 4);
  EXPECT_EQ(first[1], second[1]) << "computed twice, kept once";
}

TEST(RegularCacheTest, ReleasedBlocksStayCachedUntilTheirRoomIsNeeded) {
  RegularCache cache({.num_blocks = 4, .block_tokens = 4});
  BlockTable table, big;
  RunThrough(cache, table, "", Count(10));
  cache.Release(table);
  EXPECT_EQ(cache.num_used(), 0);
  EXPECT_EQ(cache.num_cached(), 2);
  EXPECT_EQ(cache.num_free(), 2);
  EXPECT_EQ(cache.Measure("", Count(10)).idle_blocks, 2);
  EXPECT_FALSE(cache.Grow(big, 17));
  EXPECT_EQ(cache.num_cached(), 2) << "a refusal evicts nothing";
  EXPECT_TRUE(cache.Grow(big, 13));
  EXPECT_EQ(cache.evicted_total(), 2);
  EXPECT_EQ(cache.num_available(), 0);
}

TEST(RegularCacheTest, WithoutPrefixCachingNothingIsKeptOrFound) {
  RegularCache cache({.num_blocks = 4, .block_tokens = 2, .enable_prefix_caching = false});
  BlockTable table;
  EXPECT_EQ(RunThrough(cache, table, "", Count(4)), 0);
  EXPECT_EQ(cache.Measure("", Count(4)).blocks, 0);
  cache.Release(table);
  EXPECT_EQ(cache.num_free(), 4);
}

TEST(RegularCacheTest, CommitNeedsOnlyTheBlocksThatAreFull) {
  RegularCache cache({.num_blocks = 4, .block_tokens = 2});
  BlockTable table;
  const Tokens tokens = Count(6);
  EXPECT_EQ(cache.Attach(table, "", tokens), 0);
  ASSERT_TRUE(cache.Grow(table, 6));
  cache.Commit(table, tokens, 3);
  EXPECT_EQ(cache.Measure("", tokens).blocks, 1);
  cache.Commit(table, tokens, 6);
  EXPECT_EQ(cache.Measure("", Count(7)).blocks, 3);
}

// Every content that a table sees in a block must be the one that was written there for exactly its prefix.
TEST(RegularCacheTest, RandomUseNeverMixesContents) {
  struct Sequence {
    std::string salt;
    Tokens tokens;
    int64_t computed = 0;
    BlockTable table;
  };
  using Content = std::pair<std::string, Tokens>;  // salt, and all tokens up to the block's end
  std::mt19937 rng(3);
  RegularCache cache({.num_blocks = 24, .block_tokens = 2});
  std::map<BlockId, Content> written;
  std::list<Sequence> running;
  int64_t hits = 0, refusals = 0;
  for (int round = 0; round < 30000; ++round) {
    const unsigned action = rng() % 8;
    if (action == 0 && running.size() < 6) {
      Sequence& s = running.emplace_back();
      s.salt = std::string(rng() % 2, 's');
      for (int n = rng() % 12 + 1; n > 0; --n) s.tokens.push_back(rng() % 2);
      s.computed = cache.Attach(s.table, s.salt, s.tokens);
      hits += s.computed > 0;
    } else if (action == 1 && !running.empty()) {
      running.erase(std::next(running.begin(), rng() % running.size()));
    } else if (!running.empty()) {
      Sequence& s = *std::next(running.begin(), rng() % running.size());
      if (s.computed == static_cast<int64_t>(s.tokens.size())) s.tokens.push_back(rng() % 2);
      const int64_t goal = s.computed + 1 + rng() % (s.tokens.size() - s.computed);
      if (!cache.Grow(s.table, goal)) {
        ++refusals;
        continue;
      }
      for (int64_t p = s.computed; p < goal; ++p) {
        written[s.table[p / 2]] = {s.salt, Tokens(s.tokens.begin(), s.tokens.begin() + p + 1)};
      }
      s.computed = goal;
      cache.Commit(s.table, s.tokens, s.computed);
    }
    std::vector<const BlockTable*> tables;
    for (Sequence& s : running) {
      tables.push_back(&s.table);
      for (int64_t b = 0; b * 2 < s.computed; ++b) {
        const int64_t end = std::min(s.computed, b * 2 + 2);
        ASSERT_EQ(written[s.table[b]], Content(s.salt, Tokens(s.tokens.begin(), s.tokens.begin() + end)));
      }
    }
    ASSERT_TRUE(cache.CheckInvariants(tables).ok()) << cache.CheckInvariants(tables);
  }
  running.clear();
  EXPECT_EQ(cache.num_used(), 0);
  EXPECT_EQ(cache.num_free() + cache.num_cached(), cache.num_blocks());
  EXPECT_GT(hits, 100);
  EXPECT_GT(refusals, 10);
  EXPECT_GT(cache.evicted_total(), 100);
}

}  // namespace
}  // namespace swiftcache::engine::kv
