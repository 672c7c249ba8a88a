// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>

namespace swiftcache::engine::kv {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int64_t kBlockTokens = 2;

// A sequence as the tree sees it: what it matched, then what it added.
struct Path {
  std::string salt;
  Tokens tokens;
  std::vector<BlockRef> blocks;
  PrefixTree::Pin pin;
};

class PrefixTreeTest : public ::testing::Test {
 protected:
  Path Start(const std::string& salt, const Tokens& tokens) {
    PrefixTree::Match match = tree_.Find(salt, tokens, static_cast<int64_t>(tokens.size()) / kBlockTokens);
    return {salt, tokens, std::move(match.blocks), std::move(match.pin)};
  }
  void ComputeOne(Path& path) {
    auto block = pool_.Allocate(1, std::nullopt);
    ASSERT_TRUE(block.has_value());
    const auto begin = static_cast<int64_t>(path.blocks.size()) * kBlockTokens;
    path.blocks.push_back(std::move(block->front()));
    tree_.Extend(path.pin, std::span(path.tokens).subspan(begin, kBlockTokens), path.blocks.back());
    if (!path.salt.empty()) return;
    ids_[Tokens(path.tokens.begin(), path.tokens.begin() + begin + kBlockTokens)] = path.blocks.back().id();
  }
  void Compute(Path& path) {
    while ((path.blocks.size() + 1) * kBlockTokens <= path.tokens.size()) ComputeOne(path);
  }
  // Of the block that these tokens end in, as it was computed last. REQUIRES: computed without a salt.
  BlockId IdOf(const Tokens& tokens) const { return ids_.at(tokens); }
  int64_t Lose(const Tokens& tokens) { return tree_.Lose(IdOf(tokens)); }
  void Cache(const std::string& salt, const Tokens& tokens) {
    Path path = Start(salt, tokens);
    Compute(path);
  }
  int64_t Found(const std::string& salt, const Tokens& tokens) { return tree_.Measure(salt, tokens, 1000).blocks; }

  BlockPool pool_{200};
  PrefixTree tree_{kBlockTokens};
  std::map<Tokens, BlockId> ids_;
};

TEST_F(PrefixTreeTest, MatchesTheLongestPrefixInWholeBlocks) {
  Cache("", {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Found("", {1, 2, 3, 4, 9, 9}), 2);
  EXPECT_EQ(Found("", {1, 2, 3}), 1);
  EXPECT_EQ(Found("", {2, 2, 3, 4}), 0);
  EXPECT_EQ(tree_.Measure("", Tokens{1, 2, 3, 4, 5, 6}, 2).blocks, 2) << "the limit holds";
}

TEST_F(PrefixTreeTest, SaltsShareNothing) {
  Cache("a", {1, 2});
  EXPECT_EQ(Found("a", {1, 2}), 1);
  EXPECT_EQ(Found("b", {1, 2}), 0);
  EXPECT_EQ(Found("", {1, 2}), 0);
}

TEST_F(PrefixTreeTest, TheSecondToComputeTheSameTokensGetsTheFirstOnesBlock) {
  Path first = Start("", {1, 2, 3, 4}), second = Start("", {1, 2, 3, 4});
  Compute(first);
  Compute(second);
  EXPECT_EQ(first.blocks[1].id(), second.blocks[1].id());
  EXPECT_EQ(pool_.local().used, 2) << "the duplicates were given back";
}

TEST_F(PrefixTreeTest, EvictTakesTheLeastRecentlyUsedLeaf) {
  Cache("", {1, 2, 3, 4});
  Cache("", {5, 6});
  Cache("", {7, 8});
  (void)Start("", {1, 2, 3, 4});
  EXPECT_EQ(tree_.Evict(1), 1);
  EXPECT_EQ(Found("", {5, 6}), 0);
  EXPECT_EQ(tree_.Evict(2), 2);
  EXPECT_EQ(Found("", {7, 8}), 0);
  EXPECT_EQ(Found("", {1, 2, 3, 4}), 1) << "leaves go before what leads to them";
}

TEST_F(PrefixTreeTest, EvictSkipsPinnedNodesAndTheirAncestors) {
  Path running = Start("", {1, 2, 3, 4});
  Compute(running);
  Cache("", {1, 2, 9, 9});
  EXPECT_EQ(tree_.Evict(10), 1);
  EXPECT_EQ(Found("", {1, 2, 3, 4}), 2);
  running = Path();
  EXPECT_EQ(tree_.Evict(10), 2);
  EXPECT_EQ(pool_.local().free, pool_.local().total);
}

TEST_F(PrefixTreeTest, WhatFollowsFromALostBlockIsFoundAgainBehindTheHole) {
  Cache("", {1, 2, 3, 4, 5, 6, 7, 8});
  Cache("", {1, 2, 3, 4, 9, 9});
  Lose({1, 2, 3, 4});
  EXPECT_EQ(tree_.num_holes(), 1);
  EXPECT_EQ(Found("", {1, 2, 3, 4, 5, 6}), 1) << "nobody is given the hole";
  Path path = Start("", {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(tree_.NextKnown(path.pin, path.tokens, 1, 4, Holder::kSequence), 2);
  EXPECT_EQ(tree_.NextKnown(path.pin, path.tokens, 3, 4, Holder::kSequence), 3);
  EXPECT_EQ(tree_.NextKnown(path.pin, path.tokens, 1, 2, Holder::kSequence), std::nullopt);
  EXPECT_TRUE(tree_.FindMore(path.pin, path.tokens, 4, Holder::kSequence).empty());
  ComputeOne(path);
  EXPECT_EQ(tree_.num_holes(), 0);
  EXPECT_EQ(tree_.FindMore(path.pin, path.tokens, 4, Holder::kSequence).size(), 2u);
  EXPECT_EQ(Found("", {1, 2, 3, 4, 9, 9}), 3);
  EXPECT_TRUE(tree_.CheckInvariants().ok()) << tree_.CheckInvariants();
}

TEST_F(PrefixTreeTest, AHoleGoesWithTheLastBlockBehindIt) {
  Cache("", {1, 2, 3, 4, 5, 6, 7, 8});
  Lose({1, 2});
  Lose({1, 2, 3, 4});
  EXPECT_EQ(tree_.num_holes(), 2);
  EXPECT_EQ(tree_.num_blocks(), 2);
  EXPECT_TRUE(tree_.CheckInvariants().ok()) << tree_.CheckInvariants();
  EXPECT_EQ(tree_.Evict(1), 1);
  EXPECT_EQ(tree_.num_holes(), 2);
  EXPECT_EQ(tree_.Evict(10), 1);
  EXPECT_EQ(tree_.num_holes(), 0);
  EXPECT_EQ(pool_.local().free, pool_.local().total);
  EXPECT_TRUE(tree_.CheckInvariants().ok()) << tree_.CheckInvariants();
}

TEST_F(PrefixTreeTest, ALeafThatIsLostLeavesNoHole) {
  Cache("", {1, 2, 3, 4});
  Lose({1, 2, 3, 4});
  EXPECT_EQ(tree_.num_holes(), 0);
  EXPECT_EQ(Found("", {1, 2, 3, 4}), 1);
}

TEST_F(PrefixTreeTest, ThereAreNeverMoreHolesThanBlocks) {
  Cache("", {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(Lose({1, 2}), 1);
  EXPECT_EQ(Lose({1, 2, 3, 4}), 1);
  EXPECT_EQ(Lose({1, 2, 3, 4, 5, 6}), 2) << "with what is behind it";
  EXPECT_EQ(tree_.num_blocks() + tree_.num_holes(), 0);
  EXPECT_EQ(pool_.local().free, pool_.local().total);
}

TEST_F(PrefixTreeTest, WhoSawABlockInUseSeesThatItIsAHole) {
  Path running = Start("", {1, 2, 3, 4, 5, 6});
  Compute(running);
  PrefixTree::InUse seen;
  tree_.Refresh(seen, "", running.tokens, 3);
  EXPECT_EQ(seen.blocks(), 3);
  running = Path();
  Lose({1, 2, 3, 4});
  Path other = Start("", {1, 2});
  tree_.Refresh(seen, "", Tokens{1, 2, 3, 4, 5, 6}, 3);
  EXPECT_EQ(seen.blocks(), 1);
}

TEST_F(PrefixTreeTest, WhatIsDroppedWasAUseOfWhatLedToIt) {
  Path running = Start("", {1, 2, 3, 4});
  Compute(running);
  Cache("", {9, 9});
  running = Path();
  EXPECT_EQ(Lose({1, 2, 3, 4}), 1);
  EXPECT_TRUE(tree_.EvictOne());
  EXPECT_EQ(Found("", {1, 2}), 1);
  EXPECT_EQ(Found("", {9, 9}), 0);
}

TEST_F(PrefixTreeTest, ABlockThatComesAgainHasNothingOfWhatItHeldBefore) {
  Cache("", {1, 2, 3, 4});
  Cache("", {1, 2, 5, 6});
  const BlockId id = IdOf({1, 2});
  Lose({1, 2});
  Path again = Start("", {7, 8, 7, 8, 7, 8});
  Compute(again);
  EXPECT_TRUE(std::any_of(again.blocks.begin(), again.blocks.end(), [&](auto& block) { return block.id() == id; }));
  EXPECT_EQ(Found("", {1, 2, 3, 4}), 0);
  EXPECT_EQ(Found("", {7, 8, 3, 4}), 1);
  EXPECT_EQ(Found("", {7, 8, 7, 8, 7, 8}), 3);
  Path filled = Start("", {1, 2, 3, 4});
  ComputeOne(filled);
  EXPECT_NE(filled.blocks[0].id(), id);
  EXPECT_EQ(Found("", {1, 2, 5, 6}), 2);
  EXPECT_TRUE(tree_.CheckInvariants().ok()) << tree_.CheckInvariants();
}

TEST_F(PrefixTreeTest, ABlockThatMovesIsEvictedWhenTheMoveHasEnded) {
  Path cold = Start("", {1, 2, 3, 4});
  Compute(cold);
  std::vector<Move> moves;
  for (const BlockRef& block : cold.blocks) {
    moves.push_back(*pool_.BeginMove(block.id(), pool_.AddRegion(1)));
    tree_.NoteMove(block.id());
  }
  cold = Path();
  Cache("", {5, 6});
  EXPECT_EQ(tree_.Evict(10), 1) << "the one that is warmer, and stays";
  pool_.AbortMove(moves[1]);
  tree_.NoteMove(moves[1].id);
  EXPECT_TRUE(tree_.CheckInvariants().ok()) << tree_.CheckInvariants();
  EXPECT_EQ(tree_.Evict(10), 1) << "not what leads to it";
  EXPECT_TRUE(pool_.FinishMove(moves[0]));
  tree_.NoteMove(moves[0].id);
  EXPECT_EQ(tree_.Evict(10), 1);
  EXPECT_EQ(tree_.num_blocks(), 0);
}

TEST_F(PrefixTreeTest, WhatLeadsToABlockComesBeforeItAsFarAsItIsWanted) {
  const auto all = [](BlockId) { return true; };
  using Ids = std::vector<BlockId>;
  Path first = Start("", {1, 2, 3, 4, 5, 6}), second = Start("", {1, 2, 7, 8});
  Compute(first);
  Compute(second);
  const BlockId root = first.blocks[0].id(), a = first.blocks[1].id(), b = first.blocks[2].id(),
                other = second.blocks[1].id();
  EXPECT_EQ(tree_.LeadingFirst(Ids{other, b}, 4, all), (Ids{root, other, a, b}));
  EXPECT_EQ(tree_.LeadingFirst(Ids{b, root}, 4, all), (Ids{root, a, b}));
  EXPECT_EQ(tree_.LeadingFirst(Ids{b, other}, 2, [&](BlockId id) { return id == b || id == other; }), (Ids{b, other}));
  EXPECT_EQ(tree_.IndexOf(b), 2);
  EXPECT_EQ(tree_.ParentOf(other), root);
  EXPECT_EQ(tree_.ParentOf(root), std::nullopt);
}

TEST_F(PrefixTreeTest, ThePoolKnowsWhichBlocksAreColdestInUseAndIdle) {
  Path running = Start("", {1, 2, 3, 4});
  Compute(running);
  Path idle = Start("", {5, 6, 7, 8});
  Compute(idle);
  const std::vector<BlockId> used = {running.blocks[0].id(), running.blocks[1].id()};
  const std::vector<BlockId> cold = {idle.blocks[0].id(), idle.blocks[1].id()};
  idle = Path();
  const auto ids = [](const ByUse& order) {
    std::vector<BlockId> ids;
    for (const auto& [last_use, id] : order) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(ids(pool_.spillable_idle()), cold);
  EXPECT_EQ(ids(pool_.spillable_used()), (std::vector<BlockId>{used[1], used[0]})) << "going on uses what leads there";
  (void)Start("", {5, 6});
  EXPECT_EQ(ids(pool_.spillable_idle()), (std::vector<BlockId>{cold[1], cold[0]})) << "it was used again";
  running = Path();
  EXPECT_EQ(pool_.spillable_used().size(), 0u);
  EXPECT_EQ(pool_.num_spillable(), 4);
}

TEST_F(PrefixTreeTest, AVeryLongPathIsTornDownWithoutRecursion) {
  BlockPool pool(200000);
  PrefixTree tree(1);
  PrefixTree::Match match = tree.Find("", {}, 0);
  for (int32_t i = 0; i < 200000; ++i) {
    auto block = pool.Allocate(1, std::nullopt);
    tree.Extend(match.pin, std::span(&i, 1), block->front());
  }
  EXPECT_EQ(tree.num_blocks(), 200000);
  match.pin.Reset();
}

// The naive model: every cached prefix by its tokens, the time of its last use, and nothing clever.
struct NaiveTree {
  struct Entry {
    int64_t last_use = 0;
    int64_t holders = 0;
  };
  std::map<std::pair<std::string, Tokens>, Entry> entries;
  int64_t now = 0;

  void Use(const std::string& salt, const Tokens& path, int64_t hold) {
    ++now;
    for (size_t n = kBlockTokens; n <= path.size(); n += kBlockTokens) {
      Entry& entry = entries[{salt, Tokens(path.begin(), path.begin() + n)}];
      entry.last_use = now;
      entry.holders += hold;
    }
  }
  int64_t Longest(const std::string& salt, const Tokens& tokens) const {
    int64_t blocks = 0;
    for (size_t n = kBlockTokens; n <= tokens.size(); n += kBlockTokens) {
      if (!entries.contains({salt, Tokens(tokens.begin(), tokens.begin() + n)})) break;
      ++blocks;
    }
    return blocks;
  }
  int64_t InUse(const std::string& salt, const Tokens& tokens) const {
    int64_t blocks = 0;
    for (size_t n = kBlockTokens; n <= tokens.size(); n += kBlockTokens) {
      const auto entry = entries.find({salt, Tokens(tokens.begin(), tokens.begin() + n)});
      if (entry == entries.end() || entry->second.holders == 0) break;
      ++blocks;
    }
    return blocks;
  }
  using Key = std::pair<std::string, Tokens>;
  static bool Follows(const Key& key, const Key& other) {
    return other.first == key.first && other.second.size() > key.second.size() &&
           std::equal(key.second.begin(), key.second.end(), other.second.begin());
  }
  bool IsLeaf(const Key& key) const {
    return std::none_of(entries.begin(), entries.end(), [&](const auto& other) { return Follows(key, other.first); });
  }
  size_t Holes() const {
    std::set<Key> holes;
    for (const auto& [key, entry] : entries) {
      for (size_t n = kBlockTokens; n < key.second.size(); n += kBlockTokens) {
        const Key leading = {key.first, Tokens(key.second.begin(), key.second.begin() + n)};
        if (!entries.contains(leading)) holes.insert(leading);
      }
    }
    return holes.size();
  }
  int64_t Lose(const Key& key) {
    if (Holes() < entries.size()) return entries.erase(key);
    return std::erase_if(entries, [&](const auto& e) { return e.first == key || Follows(key, e.first); });
  }
  bool Evict() {
    auto victim = entries.end();
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->second.holders > 0 || !IsLeaf(it->first)) continue;
      if (victim == entries.end() || it->second.last_use < victim->second.last_use) victim = it;
    }
    if (victim == entries.end()) return false;
    entries.erase(victim);
    return true;
  }
};

TEST_F(PrefixTreeTest, RandomUseAgreesWithTheNaiveModel) {
  std::mt19937 rng(11);
  NaiveTree naive;
  std::list<Path> running;
  const Tokens watched = {0, 1, 1, 0, 0, 0};
  PrefixTree::InUse in_use;
  int evictions = 0, hits = 0, in_use_changes = 0, holes = 0, found_behind = 0;
  const auto random_tokens = [&rng] {
    Tokens tokens(rng() % 4 * kBlockTokens);
    for (int32_t& t : tokens) t = rng() % 2;
    return tokens;
  };
  for (int round = 0; round < 12000; ++round) {
    switch (rng() % 5) {
      case 0: {  // a sequence starts, computes what it did not find, and goes on running
        if (running.size() == 3) break;
        const Tokens tokens = random_tokens();
        const std::string salt = rng() % 2 ? "x" : "";
        const int64_t expected = naive.Longest(salt, tokens);
        running.push_back(Start(salt, tokens));
        Path& path = running.back();
        ASSERT_EQ(static_cast<int64_t>(path.blocks.size()), expected);
        hits += expected > 0;
        while ((path.blocks.size() + 1) * kBlockTokens <= path.tokens.size()) {
          ComputeOne(path);
          std::vector<BlockRef> more = tree_.FindMore(path.pin, path.tokens, 4, Holder::kSequence);
          found_behind += static_cast<int>(more.size());
          std::move(more.begin(), more.end(), std::back_inserter(path.blocks));
        }
        naive.Use(salt, tokens, +1);
        break;
      }
      case 1: {  // one ends
        if (running.empty()) break;
        auto path = std::next(running.begin(), rng() % running.size());
        naive.Use(path->salt, path->tokens, -1);
        running.erase(path);
        break;
      }
      case 2: {
        if (rng() % 2) break;
        const bool evicted = naive.Evict();
        ASSERT_EQ(tree_.Evict(1), evicted ? 1 : 0);
        evictions += evicted;
        break;
      }
      case 3: {  // the KV of an idle block is lost
        std::vector<NaiveTree::Key> idle;
        for (const auto& [key, entry] : naive.entries) {
          if (key.first.empty() && entry.holders == 0 && (!naive.IsLeaf(key) || rng() % 4 == 0)) idle.push_back(key);
        }
        if (idle.empty()) break;
        const NaiveTree::Key& key = idle[rng() % idle.size()];
        ASSERT_EQ(Lose(key.second), naive.Lose(key));
        holes += tree_.num_holes() > 0;
        break;
      }
      default: {
        const Tokens tokens = random_tokens();
        ASSERT_EQ(Found("x", tokens), naive.Longest("x", tokens));
      }
    }
    const int64_t was_in_use = in_use.blocks();
    if (rng() % 4 == 0) {
      tree_.Refresh(in_use, "", watched, 3);
      ASSERT_EQ(in_use.blocks(), naive.InUse("", watched));
      in_use_changes += in_use.blocks() != was_in_use;
    }
    ASSERT_EQ(tree_.num_blocks(), static_cast<int64_t>(naive.entries.size()));
    ASSERT_EQ(tree_.num_holes(), static_cast<int64_t>(naive.Holes()));
    for (const auto& [key, entry] : naive.entries) {
      ASSERT_EQ(Found(key.first, key.second), naive.Longest(key.first, key.second));
    }
    ASSERT_TRUE(tree_.CheckInvariants().ok()) << tree_.CheckInvariants();
    ASSERT_TRUE(pool_.CheckInvariants().ok()) << pool_.CheckInvariants();
  }
  EXPECT_GT(evictions, 100);
  EXPECT_GT(hits, 100);
  EXPECT_GT(in_use_changes, 100);
  EXPECT_GT(holes, 100);
  EXPECT_GT(found_behind, 10);
}

}  // namespace
}  // namespace swiftcache::engine::kv
