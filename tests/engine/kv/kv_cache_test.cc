// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/kv_cache.h"

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
int64_t RunThrough(KvCache& cache, BlockTable& table, const std::string& salt, const Tokens& tokens) {
  const int64_t cached = cache.Attach(table, salt, tokens).tokens;
  EXPECT_EQ(cache.Grow(table, static_cast<int64_t>(tokens.size())), Growth::kDone);
  cache.Commit(table, tokens, static_cast<int64_t>(tokens.size()));
  return cached;
}

TEST(KvCacheTest, ASecondPromptFindsTheFullBlocksOfTheFirst) {
  KvCache cache({.num_blocks = 10, .block_tokens = 4});
  BlockTable first, second;
  EXPECT_EQ(RunThrough(cache, first, "", Count(10)), 0);
  EXPECT_EQ(RunThrough(cache, second, "", Count(10)), 8);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(first[2], second[2]) << "a partial block is never shared";
  EXPECT_EQ(cache.local().used, 4);
}

TEST(KvCacheTest, TheLastTokenIsNeverTakenFromTheCache) {
  KvCache cache({.num_blocks = 10, .block_tokens = 4});
  BlockTable first, second;
  RunThrough(cache, first, "", Count(8));
  EXPECT_EQ(cache.Measure("", Count(8)).blocks, 1);
  EXPECT_EQ(RunThrough(cache, second, "", Count(8)), 4);
  EXPECT_EQ(first[1], second[1]) << "computed twice, kept once";
}

TEST(KvCacheTest, ReleasedBlocksStayCachedUntilTheirRoomIsNeeded) {
  KvCache cache({.num_blocks = 4, .block_tokens = 4});
  BlockTable table, big;
  RunThrough(cache, table, "", Count(10));
  cache.Release(table);
  EXPECT_EQ(cache.local().used, 0);
  EXPECT_EQ(cache.local().cached, 2);
  EXPECT_EQ(cache.local().free, 2);
  EXPECT_EQ(cache.Measure("", Count(10)).idle_blocks, 2);
  EXPECT_EQ(cache.Grow(big, 17), Growth::kNoRoom);
  EXPECT_EQ(cache.local().cached, 2) << "a refusal evicts nothing";
  EXPECT_EQ(cache.Grow(big, 13), Growth::kDone);
  EXPECT_EQ(cache.evicted_total(), 2);
  EXPECT_EQ(cache.num_available(), 0);
}

TEST(KvCacheTest, WithoutPrefixCachingNothingIsKeptOrFound) {
  KvCache cache({.num_blocks = 4, .block_tokens = 2, .enable_prefix_caching = false});
  BlockTable table;
  EXPECT_EQ(RunThrough(cache, table, "", Count(4)), 0);
  EXPECT_EQ(cache.Measure("", Count(4)).blocks, 0);
  cache.Release(table);
  EXPECT_EQ(cache.local().free, 4);
}

TEST(KvCacheTest, CommitNeedsOnlyTheBlocksThatAreFull) {
  KvCache cache({.num_blocks = 4, .block_tokens = 2});
  BlockTable table;
  const Tokens tokens = Count(6);
  EXPECT_EQ(cache.Attach(table, "", tokens).tokens, 0);
  ASSERT_EQ(cache.Grow(table, 6), Growth::kDone);
  cache.Commit(table, tokens, 3);
  EXPECT_EQ(cache.Measure("", tokens).blocks, 1);
  cache.Commit(table, tokens, 6);
  EXPECT_EQ(cache.Measure("", Count(7)).blocks, 3);
}

// Every content that a table sees in a block must be the one that was written there for exactly its prefix.
TEST(KvCacheTest, RandomUseNeverMixesContents) {
  struct Sequence {
    std::string salt;
    Tokens tokens;
    int64_t computed = 0;
    BlockTable table;
  };
  using Content = std::pair<std::string, Tokens>;  // salt, and all tokens up to the block's end
  std::mt19937 rng(3);
  KvCache cache({.num_blocks = 24, .block_tokens = 2});
  std::map<BlockId, Content> written;
  std::list<Sequence> running;
  int64_t hits = 0, refusals = 0;
  for (int round = 0; round < 30000; ++round) {
    const unsigned action = rng() % 8;
    if (action == 0 && running.size() < 6) {
      Sequence& s = running.emplace_back();
      s.salt = std::string(rng() % 2, 's');
      for (int n = rng() % 12 + 1; n > 0; --n) s.tokens.push_back(rng() % 2);
      s.computed = cache.Attach(s.table, s.salt, s.tokens).tokens;
      hits += s.computed > 0;
    } else if (action == 1 && !running.empty()) {
      running.erase(std::next(running.begin(), rng() % running.size()));
    } else if (!running.empty()) {
      Sequence& s = *std::next(running.begin(), rng() % running.size());
      if (s.computed == static_cast<int64_t>(s.tokens.size())) s.tokens.push_back(rng() % 2);
      const int64_t goal = s.computed + 1 + rng() % (s.tokens.size() - s.computed);
      if (cache.Grow(s.table, goal) != Growth::kDone) {
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
  EXPECT_EQ(cache.local().used, 0);
  EXPECT_EQ(cache.local().free + cache.local().cached, cache.local().total);
  EXPECT_GT(hits, 100);
  EXPECT_GT(refusals, 10);
  EXPECT_GT(cache.evicted_total(), 100);
}

}  // namespace
}  // namespace swiftcache::engine::kv
