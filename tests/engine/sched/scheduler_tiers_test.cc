// SPDX-License-Identifier: Apache-2.0
// The scheduler over a cache with leases: waits, losses and holes.
#include "tests/engine/sched/scheduler_tiers_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swiftcache::engine::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

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

TEST_F(SchedulerTiersTest, WhoDoesNotFitAsksForMemoryWhileOthersTakeTheWholeStep) {
  Create(16, {.max_num_batched_tokens = 8});
  Add(40);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8)));
  Add(80);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8)));
  EXPECT_GE(cache_->TakeLeaseWish(0), 4);
}

TEST_F(SchedulerTiersTest, WhoWaitsForRoomAndGivesWayToAnotherDoesNotStarve) {
  Create(2, {.max_num_seqs = 1, .max_num_batched_tokens = 64});
  cache_->AddRegion(20);
  const Sequence* first = Add(8);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8)));
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_TRUE(scheduler_->Starves(*first)) << "it runs, and gets no room";
  Add(4, /*priority=*/1);
  Step();
  EXPECT_THAT(plan_.preempted, ElementsAre(first));
  EXPECT_FALSE(scheduler_->Starves(*first)) << "it waits for its turn";
}

TEST_F(SchedulerTiersTest, NobodyGivesWayForWhatALeaseThatDrainsWouldHold) {
  for (const int64_t blocks : {15, 14}) {
    Create(16, {.max_num_batched_tokens = 64});
    const kv::RegionId lease = cache_->AddRegion(8);
    const Sequence* victim = Add(74);
    while (victim->remaining_tokens() > 1) StepAndSpill();
    Add(2, /*priority=*/1);
    Step();
    ASSERT_GT(cache_->LeasedBlocks(victim->blocks), 0);
    cache_->RegionDraining(lease);
    Add(blocks * kBlockTokens, /*priority=*/1);  // and a block more
    Plan();
    EXPECT_EQ(plan_.preempted.size(), blocks == 15 ? 0u : 1u) << "15 are left beside the one of the second";
  }
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
  ASSERT_TRUE(cache_->Lend({4, 4}));
  Add(8);
  Add(8);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8), Pair(2, 8)));
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_THAT(plan_.preempted, IsEmpty());
  EXPECT_EQ(cache_->TakeNeed(), 2) << "a block each";
  cache_->TakeBack({6, 2});
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
}

TEST_F(SchedulerTiersTest, ThePromptThatWaitsAsksForItsWholeChunk) {
  Create(8, {.max_num_batched_tokens = 64});
  ASSERT_TRUE(cache_->Lend({1, 7}));
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

TEST_F(SchedulerTiersTest, WhoRunsAsksForWhatWasTakenFromItBeforeItMisses) {
  Create(4, {.max_num_batched_tokens = 4}, 20);
  cache_->AddRegion(4);
  const kv::RegionId unused = cache_->AddRegion(4);
  Add(40);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 4)));
  EXPECT_EQ(cache_->TakeLeaseWish(0), 0) << "10 blocks fit into 12";
  Lose(unused);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 4)));
  EXPECT_EQ(cache_->TakeLeaseWish(0), 2) << "and not into 8";
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

// Its cached blocks are then worth saving out of a lease that goes back.
TEST_F(SchedulerTiersTest, WhoIsResetOrGivesWayIsExpectedToFindItsBlocksAgain) {
  enum { kEnds, kIsReset, kGivesWay };
  for (const int how : {kEnds, kIsReset, kGivesWay}) {
    Create(8, {.max_num_seqs = 1, .max_num_batched_tokens = 64});
    const kv::RegionId lease = cache_->AddRegion(8, "donor");
    cache_->AddRegion(8, "another");
    Sequence* sequence = Add(40);
    while (cache_->LeasedBlocks(sequence->blocks) == 0 || sequence->remaining_tokens() > 1) StepAndSpill();
    ASSERT_EQ(cache_->WorthSaving(lease), 0) << "it is in use";
    if (how == kEnds) scheduler_->Remove(sequence);
    if (how == kIsReset) scheduler_->Reset(sequence);
    if (how == kGivesWay) {
      Add(8, /*priority=*/1);
      Step();
      ASSERT_THAT(plan_.preempted, ElementsAre(sequence));
    }
    EXPECT_EQ(cache_->WorthSaving(lease) > 0, how != kEnds) << how;
  }
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

TEST_F(SchedulerTiersTest, OnlyTheHoleIsComputedAgain) {
  Create(4, {.max_num_batched_tokens = 8});
  const kv::RegionId first = cache_->AddRegion(5);
  cache_->AddRegion(10);
  Sequence* sequence = Add(60);
  while (sequence->remaining_tokens() > 1) StepAndSpill();
  const int64_t lost = cache_->region(first).used * kBlockTokens;
  ASSERT_EQ(lost, 20);
  Lose(first);
  cache_->AddRegion(10);
  for (int i = 0; i < 40 && sequence->remaining_tokens() > 1; ++i) StepAndSpill();
  ASSERT_EQ(sequence->remaining_tokens(), 1);
  EXPECT_LE(sequence->again_tokens, lost + kBlockTokens) << "and what was not committed";
  EXPECT_EQ(sequence->cached_tokens, 0) << "it finds what it had itself";
}

TEST_F(SchedulerTiersTest, WhatIsKnownBehindAHoleIsFoundByOthersToo) {
  Create(18, {.max_num_batched_tokens = 100}, 1000, /*watermark_blocks=*/4);
  const kv::RegionId lease = cache_->AddRegion(4);
  Sequence* first = Add(64);
  while (first->remaining_tokens() > 1) StepAndSpill();
  StepAndSpill();
  ASSERT_GT(cache_->LeasedBlocks(first->blocks), 0);
  const int64_t lost = cache_->region(lease).used * kBlockTokens;
  Sequence& same = sequences_.emplace_back();
  same.id = SequenceId(9);
  same.tokens = first->tokens;
  scheduler_->Remove(first);
  Lose(lease);
  scheduler_->Add(&same);
  EXPECT_THAT(Step(), ElementsAre(Pair(9, lost))) << "a chunk ends where the hole ends";
  const int64_t rest = same.tokens.size() - 64;
  EXPECT_THAT(Step(), ElementsAre(Pair(9, rest)));
  EXPECT_EQ(same.cached_tokens, 64 - lost);
  EXPECT_EQ(same.again_tokens, 0);
}

TEST_F(SchedulerTiersTest, WhoComputesTheSameAgainAndAgainIsExhausted) {
  Create(8, {.max_num_batched_tokens = 64});
  Sequence* unlucky = Add(100);
  Sequence* shorter = Add(8);
  int64_t rounds = 0;
  while (!scheduler_->IsExhausted(*unlucky)) {
    const kv::RegionId lease = cache_->AddRegion(40);
    for (int i = 0; i < 4; ++i) StepAndSpill();
    Lose(lease);
    ASSERT_LT(++rounds, 100);
  }
  EXPECT_GT(unlucky->again_tokens, Scheduler::kMaxAgain * 100);
  EXPECT_LE(unlucky->again_tokens, Scheduler::kMaxAgain * 100 + 4 * 64);
  EXPECT_FALSE(scheduler_->IsExhausted(*shorter)) << "it runs from own memory";
  EXPECT_GT(static_cast<int64_t>(shorter->tokens.size()), shorter->prompt_tokens);
}

TEST_F(SchedulerTiersTest, WhoOutgrowsOwnedMemoryRunsOnWithLeases) {
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

}  // namespace
}  // namespace swiftcache::engine::sched
