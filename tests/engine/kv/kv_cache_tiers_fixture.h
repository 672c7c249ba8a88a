// SPDX-License-Identifier: Apache-2.0
// A KV cache that may borrow, in blocks of two tokens.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/kv/kv_cache.h"

namespace swiftcache::engine::kv {

/// Of the calling thread: other work on the machine does not count.
inline double CpuNanos() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

class KvCacheTiersTest : public ::testing::Test {
 protected:
  using Tokens = std::vector<int32_t>;
  static constexpr int64_t kBlockTokens = 2;

  static Tokens Count(int64_t n, int32_t from = 0) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }
  void Create(int64_t num_blocks, int64_t watermark_blocks = 1) {
    cache_ = std::make_unique<KvCache>(KvCache::Options{.num_blocks = num_blocks,
                                                        .block_tokens = kBlockTokens,
                                                        .may_borrow = true,
                                                        .watermark_blocks = watermark_blocks});
  }
  /// Computes what the cache does not have.
  void Run(BlockTable& table, const Tokens& tokens, bool local_only = false) {
    cache_->Attach(table, "", tokens, local_only);
    ASSERT_EQ(cache_->Grow(table, static_cast<int64_t>(tokens.size())), Growth::kDone);
    cache_->Commit(table, tokens, static_cast<int64_t>(tokens.size()));
  }
  void Cache(const Tokens& tokens) {
    BlockTable table;
    Run(table, tokens);
    cache_->Release(table);
  }
  /// Moves that all arrive.
  int64_t Spill(int64_t max = 100) {
    const std::vector<Move> moves = cache_->TakeMoves(max, max);
    for (const Move& move : moves) EXPECT_TRUE(cache_->FinishMove(move));
    return static_cast<int64_t>(moves.size());
  }
  void SpillAll() {
    while (Spill() > 0) {
    }
  }
  int64_t Found(const Tokens& tokens) { return cache_->Measure("", tokens).blocks; }
  std::vector<bool> Local(const BlockTable& table) {
    std::vector<bool> local;
    for (int64_t i = 0; i < table.size(); ++i) local.push_back(cache_->place(table[i]).local());
    return local;
  }
  void Check(std::vector<const BlockTable*> tables) {
    EXPECT_TRUE(cache_->CheckInvariants(tables).ok()) << cache_->CheckInvariants(tables);
  }

  std::unique_ptr<KvCache> cache_;
};

}  // namespace swiftcache::engine::kv
