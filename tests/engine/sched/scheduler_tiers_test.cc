// SPDX-License-Identifier: Apache-2.0
// The scheduler over a cache with leases: waits, losses, and that everybody gets there whatever becomes of the leases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "engine/kv/kv_cache.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kBlockTokens = 4;
using Chunks = std::vector<std::pair<int64_t, int64_t>>;  // id and tokens

class SchedulerTiersTest : public ::testing::Test {
 protected:
  void Create(int64_t num_blocks, const Scheduler::Options& options, int64_t potential = 1000,
              int64_t watermark_blocks = 1) {
    sequences_.clear();  // before the cache that they hold blocks of
    cache_ = std::make_unique<kv::KvCache>(kv::KvCache::Options{
        .num_blocks = num_blocks, .block_tokens = kBlockTokens, .watermark_blocks = watermark_blocks});
    cache_->SetPotentialRegionBlocks(potential, /*leasable=*/0);
    scheduler_ = std::make_unique<Scheduler>(options, cache_.get());
    moves_.clear();
  }
  Sequence* Add(int64_t prompt_tokens, int32_t priority = 0) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.id = SequenceId(static_cast<int64_t>(sequences_.size()));
    sequence.priority = priority;
    std::vector<int32_t> tokens(prompt_tokens);
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(1000 * sequence.id.value()));
    sequence.tokens = TokenList(std::move(tokens));
    sequence.prompt_tokens = prompt_tokens;
    scheduler_->Add(&sequence);
    return &sequence;
  }
  Chunks Step() {
    plan_ = scheduler_->Plan();
    scheduler_->Commit(plan_);
    Chunks chunks;
    for (const Chunk& chunk : plan_.chunks) {
      if (chunk.samples) chunk.sequence->tokens.push_back(next_token_--);
      chunks.emplace_back(chunk.sequence->id.value(), chunk.num_tokens);
    }
    EXPECT_TRUE(scheduler_->CheckInvariants().ok()) << scheduler_->CheckInvariants();
    return chunks;
  }
  void StartMoves() {
    const std::vector<kv::Move> moves = cache_->TakeMoves(100, 100);
    moves_.insert(moves_.end(), moves.begin(), moves.end());
  }
  void FinishMoves() {
    for (const kv::Move& move : moves_) cache_->FinishMove(move);
    moves_.clear();
  }
  // Copies take less than a step.
  Chunks StepAndSpill() {
    const Chunks chunks = Step();
    StartMoves();
    FinishMoves();
    return chunks;
  }
  void Lose(kv::RegionId lease) {
    cache_->RegionDraining(lease);
    std::erase_if(moves_, [&](const kv::Move& move) {
      if (move.from.region != lease && move.to.region != lease) return false;
      cache_->AbortMove(move);
      return true;
    });
    const std::vector<Sequence*> running(scheduler_->running().begin(), scheduler_->running().end());
    for (Sequence* sequence : running) {
      if (cache_->Touches(sequence->blocks, lease)) scheduler_->Reset(sequence);
    }
    cache_->DropRegion(lease);
    EXPECT_TRUE(scheduler_->CheckInvariants().ok()) << scheduler_->CheckInvariants();
  }

  std::unique_ptr<kv::KvCache> cache_;
  std::list<Sequence> sequences_;  // destroyed before the cache
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  std::vector<kv::Move> moves_;
  int32_t next_token_ = -1;
};

TEST_F(SchedulerTiersTest, APromptSeveralTimesTheOwnMemoryRunsOverALease) {
  Create(4, {.max_num_batched_tokens = 8});
  cache_->AddRegion(20);
  Sequence* sequence = Add(80);
  for (int i = 0; i < 40 && sequence->remaining_tokens() > 1; ++i) StepAndSpill();
  EXPECT_EQ(sequence->computed_tokens, 80);
  EXPECT_GE(cache_->LeasedBlocks(sequence->blocks), 16);
  EXPECT_EQ(cache_->evicted_total(), 0);
}

TEST_F(SchedulerTiersTest, WhoWaitsForRoomGetsNoTokensAndOthersGoOn) {
  Create(4, {.max_num_batched_tokens = 64});
  cache_->AddRegion(20);
  Sequence* first = Add(4);   // its next token needs a block
  Sequence* second = Add(9);  // its next token does not
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 4), Pair(2, 9)));
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 1)));
  EXPECT_TRUE(plan_.waits);
  EXPECT_THAT(plan_.preempted, IsEmpty());
  StartMoves();
  ASSERT_FALSE(moves_.empty());
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 1))) << "the copy takes its time";
  FinishMoves();
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_FALSE(plan_.waits);
  EXPECT_EQ(first->losses + second->losses, 0);
}

TEST_F(SchedulerTiersTest, APlanMayBeEmptyWhenAllWait) {
  Create(2, {.max_num_batched_tokens = 64});
  cache_->AddRegion(20);
  Add(8);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8)));
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_TRUE(plan_.waits);
  StartMoves();
  FinishMoves();
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1)));
}

TEST_F(SchedulerTiersTest, LentMemoryIsWaitedForBeforeAnybodyIsPreempted) {
  Create(8, {.max_num_batched_tokens = 64});
  ASSERT_TRUE(cache_->Lend(4, 4));
  Add(8);
  Add(8);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8), Pair(2, 8)));
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_THAT(plan_.preempted, IsEmpty());
  EXPECT_EQ(cache_->TakeNeed(), 2) << "a block each";
  cache_->TakeBack(6, 2);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
}

TEST_F(SchedulerTiersTest, ThePromptThatWaitsAsksForItsWholeChunk) {
  Create(8, {.max_num_batched_tokens = 64});
  ASSERT_TRUE(cache_->Lend(1, 7));
  Add(20);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 4)));
  EXPECT_EQ(cache_->TakeNeed(), 4);
}

TEST_F(SchedulerTiersTest, WhatNeedsMoreThanThereIsWaitsAndIsOvertaken) {
  Create(4, {.max_num_batched_tokens = 64}, 20);
  Sequence* large = Add(40);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_TRUE(plan_.waits);
  Add(4);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 4)));
  EXPECT_TRUE(plan_.waits);
  cache_->AddRegion(8);
  scheduler_->Remove(&sequences_.back());
  for (int i = 0; i < 20 && large->remaining_tokens() > 1; ++i) StepAndSpill();
  EXPECT_EQ(large->computed_tokens, 40);
  EXPECT_TRUE(scheduler_->CanEverFit(24 * kBlockTokens));
  EXPECT_FALSE(scheduler_->CanEverFit(24 * kBlockTokens + 1));
}

TEST_F(SchedulerTiersTest, WhoOutgrowsWhatIsLeftGivesItsBlocksBackAndOthersRun) {
  Create(4, {.max_num_batched_tokens = 16}, 20);
  const kv::RegionId lease = cache_->AddRegion(8);
  Sequence* large = Add(40);
  while (large->remaining_tokens() > 1) StepAndSpill();
  Lose(lease);
  EXPECT_EQ(large->losses, 1);
  EXPECT_THAT(Step(), IsEmpty());
  Add(8);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 8)));
  cache_->AddRegion(12);
  for (int i = 0; i < 20 && large->remaining_tokens() > 1; ++i) StepAndSpill();
  EXPECT_EQ(large->remaining_tokens(), 1);
}

TEST_F(SchedulerTiersTest, ALossSendsItBackToItsPlaceInTheOrder) {
  Create(4, {.max_num_batched_tokens = 64});
  const kv::RegionId lease = cache_->AddRegion(8);
  Sequence* first = Add(7);
  Sequence* second = Add(8);
  while (cache_->LeasedBlocks(first->blocks) == 0) StepAndSpill();
  const int64_t tokens = static_cast<int64_t>(first->tokens.size());
  ASSERT_LT(tokens, 16);
  Sequence* third = Add(4);
  Lose(lease);
  EXPECT_EQ(first->losses, 1);
  EXPECT_EQ(first->computed_tokens, 0);
  EXPECT_EQ(first->blocks.size(), 0);
  scheduler_->Remove(second);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, tokens), testing::_)) << "computed again from its tokens, before the third";
  EXPECT_GT(third->computed_tokens, 0);
}

TEST_F(SchedulerTiersTest, CommitLeavesOutWhoWasReset) {
  Create(8, {.max_num_batched_tokens = 64});
  Sequence* lost = Add(8);
  Sequence* kept = Add(8);
  const StepPlan plan = scheduler_->Plan();
  scheduler_->Reset(lost);
  scheduler_->Commit(plan);
  EXPECT_EQ(lost->computed_tokens, 0);
  EXPECT_EQ(kept->computed_tokens, 8);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
}

TEST_F(SchedulerTiersTest, AfterTwoLossesItRunsFromOwnedMemory) {
  Create(8, {.max_num_batched_tokens = 64});
  cache_->AddRegion(20);
  Sequence* unlucky = Add(16);
  for (int64_t i = 0; i < Scheduler::kMaxLosses; ++i) {
    Step();
    scheduler_->Reset(unlucky);
  }
  Sequence* other = Add(12);
  for (int i = 0; i < 6; ++i) StepAndSpill();
  EXPECT_TRUE(unlucky->owned_only);
  EXPECT_EQ(cache_->LeasedBlocks(unlucky->blocks), 0);
  EXPECT_GT(cache_->LeasedBlocks(other->blocks), 0) << "the other's are spilled in its place";
}

TEST_F(SchedulerTiersTest, WhatIsTooLongForOwnedMemoryGoesOnInSmallChunks) {
  Create(8, {.max_num_batched_tokens = 64});
  cache_->AddRegion(40);
  Sequence* unlucky = Add(100);
  for (int64_t i = 0; i < Scheduler::kMaxLosses; ++i) {
    Step();
    scheduler_->Reset(unlucky);
  }
  while (unlucky->remaining_tokens() > 1) {
    for (const auto& [id, tokens] : StepAndSpill()) EXPECT_LE(tokens, Scheduler::kCarefulTokens);
  }
  EXPECT_FALSE(unlucky->owned_only);
}

TEST_F(SchedulerTiersTest, WhoOutgrowsOwnedMemoryRunsOnCarefully) {
  Create(4, {.max_num_batched_tokens = 64});
  cache_->AddRegion(40);
  Sequence* unlucky = Add(14);
  unlucky->losses = Scheduler::kMaxLosses;
  for (int i = 0; i < 3; ++i) StepAndSpill();
  EXPECT_TRUE(unlucky->owned_only);
  for (int i = 0; i < 12; ++i) StepAndSpill();
  EXPECT_FALSE(unlucky->owned_only);
  EXPECT_GT(unlucky->computed_tokens, 16);
}

TEST_F(SchedulerTiersTest, StepsThatTouchLeasesAreShort) {
  Create(16, {.max_num_batched_tokens = 32, .max_tokens_touching_regions = 6}, 1000, 4);
  cache_->AddRegion(100);
  Sequence* alone = Add(100);
  int64_t longest_before = 0, longest_after = 0;
  while (alone->remaining_tokens() > 1) {
    const bool touches = cache_->LeasedBlocks(alone->blocks) > 0;
    for (const auto& [id, tokens] : StepAndSpill()) {
      int64_t& longest = touches ? longest_after : longest_before;
      longest = std::max(longest, tokens);
    }
  }
  EXPECT_EQ(longest_before, 32);
  EXPECT_EQ(longest_after, 6);
}

TEST_F(SchedulerTiersTest, AStepIsShortToo_WhereWhatIsAttachedLiesInALease) {
  Create(8, {.max_num_batched_tokens = 32, .max_tokens_touching_regions = 6});
  cache_->AddRegion(100);
  Sequence* first = Add(28);
  for (int i = 0; i < 8; ++i) StepAndSpill();
  ASSERT_GT(cache_->LeasedBlocks(first->blocks), 0);
  Sequence& same = sequences_.emplace_back();
  same.id = SequenceId(9);
  same.tokens = first->tokens;
  for (int i = 0; i < 20; ++i) same.tokens.push_back(7);
  scheduler_->Remove(first);
  scheduler_->Add(&same);
  const Chunks chunks = StepAndSpill();
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_LE(chunks[0].second, 6);
  EXPECT_GT(same.cached_leased_tokens, 0);
  EXPECT_GT(*same.cached_tokens, same.cached_leased_tokens);
}

// Leases come, drain and break at random, memory is lent and comes back, copies end late or not at all. Who fits into
// owned memory ends in bounded time although the storm never stops; the others once a lease stays.
class Storm : public SchedulerTiersTest {
 protected:
  struct Totals {
    int64_t waits = 0, empty = 0, losses = 0, owned = 0, careful = 0, preempted = 0, reclaimed = 0;
  };

  void Run(unsigned seed, Totals& totals) {
    rng_.seed(seed);
    leases_.clear();
    lent_.clear();
    const int64_t num_blocks = 4 + rng_() % 16;
    const int64_t potential = 16;
    Create(num_blocks,
           {.max_num_seqs = 1 + static_cast<int64_t>(rng_() % 6),
            .max_num_batched_tokens = 2 + static_cast<int64_t>(rng_() % 40),
            .max_tokens_touching_regions = static_cast<int64_t>(rng_() % 8)},
           potential);
    std::map<Sequence*, int64_t> goal;
    int added = 0;
    bool only_large_left = false;
    for (int step = 0; added < 12 || scheduler_->has_work(); ++step) {
      ASSERT_LT(step, 6000) << "no end";
      if (added < 12 && rng_() % 3 == 0) {
        const int64_t blocks = rng_() % 4 == 0 ? num_blocks + potential : num_blocks;
        const int64_t total = 2 + rng_() % (blocks * kBlockTokens - 2);
        goal[Add(1 + rng_() % (total - 1), rng_() % 8 == 0)] = total;
        ++added;
      }
      if (!only_large_left || step > 5000) Weather(step > 5000);
      if (only_large_left) Weather(true);
      const Chunks chunks = Step();
      totals.waits += plan_.waits;
      totals.empty += chunks.empty();
      totals.preempted += static_cast<int64_t>(plan_.preempted.size());
      Serve(chunks.empty(), totals);
      only_large_left = added == 12;
      for (Sequence& s : sequences_) {
        if (goal[&s] < 0) continue;
        totals.owned += s.owned_only;
        totals.careful += s.losses >= Scheduler::kMaxLosses && !s.owned_only && scheduler_->is_running(&s);
        if (goal[&s] <= num_blocks * kBlockTokens) {
          only_large_left = false;
          EXPECT_LE(s.losses, Scheduler::kMaxLosses) << "what runs from owned memory loses nothing";
        }
        if (s.remaining_tokens() < 1 || static_cast<int64_t>(s.tokens.size()) < goal[&s]) continue;
        totals.losses += s.losses;
        scheduler_->Remove(&s);
        goal[&s] = -1;
      }
      ASSERT_FALSE(HasFailure());
    }
    while (!leases_.empty()) EndLease();
    while (!lent_.empty()) TakeBack();
    EXPECT_EQ(cache_->local().free + cache_->local().cached, cache_->local().total) << "a block was leaked";
  }

 private:
  // calm: a lease of all that there may be comes, and stays.
  void Weather(bool calm) {
    if (calm) {
      if (leases_.empty()) leases_.push_back(cache_->AddRegion(16));
      if (leases_.size() > 1 || cache_->region(leases_[0]).total < 16) EndLease();
      return;
    }
    if (rng_() % 4 == 0 && leases_.size() < 3) leases_.push_back(cache_->AddRegion(1 + rng_() % 5));
    if (rng_() % 6 == 0 && !leases_.empty()) EndLease();
    if (rng_() % 6 == 0) Lend();
    if (rng_() % 8 == 0 && !lent_.empty()) TakeBack();
  }
  void EndLease() {
    const size_t which = rng_() % leases_.size();
    const kv::RegionId lease = leases_[which];
    leases_.erase(leases_.begin() + which);
    cache_->RegionDraining(lease);
    if (rng_() % 2) {
      for (const kv::Move& move : cache_->PlanDrain(lease, 1 + rng_() % 4)) EXPECT_TRUE(cache_->FinishMove(move));
    }
    Lose(lease);
  }
  void Lend() {
    const auto total = static_cast<int32_t>(cache_->local().total);
    const int32_t count = 1 + static_cast<int32_t>(rng_() % (total / 2));
    const auto moves = cache_->ClearForLending(total - count, count, 4);
    if (!moves) return;
    for (const kv::Move& move : *moves) cache_->FinishMove(move);
    ASSERT_TRUE(cache_->Lend(total - count, count));
    lent_.push_back({total - count, count});
  }
  void TakeBack() {
    cache_->TakeBack(lent_.back().first, lent_.back().second);
    lent_.pop_back();
  }
  // What the loop does beside the step. After an empty plan it sleeps until something comes of what is on its way.
  void Serve(bool slept, Totals& totals) {
    const int64_t wish = cache_->TakeNeed();
    StartMoves();
    if (slept && moves_.empty() && wish == 0) ExpectOnlyLargeOnes();
    totals.reclaimed += wish;
    if (wish > 0 && (slept || rng_() % 2)) TakeBack();
    while (!moves_.empty() && (slept || rng_() % 3)) {
      if (rng_() % 5 == 0) {
        cache_->AbortMove(moves_.back());
      } else {
        cache_->FinishMove(moves_.back());
      }
      moves_.pop_back();
      slept = false;
    }
  }
  void ExpectOnlyLargeOnes() { EXPECT_EQ(scheduler_->num_running(), 0) << "it sleeps and nothing is on its way"; }

  std::mt19937 rng_;
  std::vector<kv::RegionId> leases_;
  std::vector<std::pair<int32_t, int32_t>> lent_;
};

TEST_F(Storm, EverybodyEndsInBoundedTime) {
  Totals totals;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Run(seed, totals);
    if (HasFailure()) return;
  }
  for (int64_t times :
       {totals.waits, totals.empty, totals.losses, totals.owned, totals.careful, totals.preempted, totals.reclaimed}) {
    EXPECT_GT(times, 50) << "a part of the storm was hardly there";
  }
}

}  // namespace
}  // namespace swiftcache::engine::sched
