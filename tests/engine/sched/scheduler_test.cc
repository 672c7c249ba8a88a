// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <numeric>
#include <random>

#include "engine/kv/kv_cache.h"
#include "tests/engine/sched/counting_blocks.h"

namespace swiftcache::engine::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int64_t kBlockTokens = 4;

class SchedulerTest : public ::testing::Test {
 protected:
  void Create(int64_t num_blocks, int64_t max_seqs, int64_t max_tokens, bool caching = true) {
    sequences_.clear();  // before the cache that they hold blocks of
    cache_ = std::make_unique<kv::KvCache>(kv::KvCache::Options{num_blocks, kBlockTokens, caching});
    scheduler_ = std::make_unique<Scheduler>(Scheduler::Options{max_seqs, max_tokens}, cache_.get());
  }
  // Its tokens are its own unless `first_token` is another's.
  Sequence* Add(int64_t prompt_tokens, int32_t priority = 0, std::optional<int32_t> first_token = {}) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.id = SequenceId(static_cast<int64_t>(sequences_.size()));
    sequence.priority = priority;
    std::vector<int32_t> tokens(prompt_tokens);
    std::iota(tokens.begin(), tokens.end(), first_token.value_or(1000 * sequence.id.value()));
    sequence.tokens = TokenList(std::move(tokens));
    sequence.prompt_tokens = prompt_tokens;
    scheduler_->Add(&sequence);
    return &sequence;
  }
  // A step: id and tokens of each chunk.
  std::vector<std::pair<int64_t, int64_t>> Step() {
    plan_ = scheduler_->Plan();
    scheduler_->NoteComputed(plan_);
    scheduler_->Commit(plan_);
    std::vector<std::pair<int64_t, int64_t>> chunks;
    for (const Chunk& chunk : plan_.chunks) {
      if (chunk.samples) chunk.sequence->tokens.push_back(next_token_--);
      chunks.emplace_back(chunk.sequence->id.value(), chunk.num_tokens);
    }
    EXPECT_TRUE(scheduler_->CheckInvariants().ok()) << scheduler_->CheckInvariants();
    return chunks;
  }

  std::unique_ptr<kv::KvCache> cache_;
  std::list<Sequence> sequences_;  // destroyed before the cache
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  int32_t next_token_ = -1;
};

TEST_F(SchedulerTest, NothingAddedIsAnEmptyPlan) {
  Create(10, 4, 16);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, DecodesComeFirstThenAPrefillFillsTheBudget) {
  Create(100, 4, 10);
  Add(3);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 3)));
  Add(25);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 9)));
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 9)));
  EXPECT_FALSE(plan_.chunks[1].samples);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 7)));
  EXPECT_TRUE(plan_.chunks[1].samples);
}

TEST_F(SchedulerTest, PromptsComputeFewerTokensBesideDecodesThanAlone) {
  Create(100, 4, 64);
  scheduler_->LimitPromptTokensBesideDecodes(5, /*on_leases=*/1);
  Add(30);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 30))) << "nobody waits for a token";
  Add(8);
  Add(9);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 5)));
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 3), Pair(3, 2))) << "together, whoever's they are";
  scheduler_->LimitPromptTokensBesideDecodes(6, /*on_leases=*/1);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 6)));
}

TEST_F(SchedulerTest, AFullStepLeavesOneTokenForTheOneServedFirst) {
  Create(100, 4, 2);
  Add(1, 0);
  Step();
  Sequence* urgent = Add(10, 5);
  for (int i = 0; i < 4; ++i) Step();
  EXPECT_GE(urgent->computed_tokens, 4);
  EXPECT_EQ(sequences_.front().computed_tokens, 5) << "and the decode goes on beside it";
}

TEST_F(SchedulerTest, NoMoreSequencesRunThanMaxNumSeqsOrTokensOfAStep) {
  Create(100, 2, 64);
  for (int i = 0; i < 3; ++i) Add(2);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 2), Pair(2, 2)));
  scheduler_->Remove(&sequences_.front());
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 1), Pair(3, 2)));

  Create(100, 64, 1);
  for (int i = 0; i < 3; ++i) Add(1);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(scheduler_->num_waiting(), 2);
}

TEST_F(SchedulerTest, TokensThatWaitAndGroupsThatRunAreCounted) {
  Create(100, 2, 64);
  SequenceGroup group;
  Sequence* first = Add(10);
  Sequence* second = Add(20);
  Sequence* third = Add(30);
  first->group = second->group = &group;
  EXPECT_EQ(scheduler_->waiting_tokens(), 60);
  EXPECT_EQ(scheduler_->num_running_groups(), 0);
  Step();
  EXPECT_EQ(scheduler_->waiting_tokens(), 30) << "no more than two run";
  EXPECT_EQ(scheduler_->num_running_groups(), 1) << "two of one group";
  scheduler_->Remove(first);
  EXPECT_EQ(scheduler_->num_running_groups(), 1);
  Step();
  EXPECT_EQ(scheduler_->waiting_tokens(), 0);
  EXPECT_EQ(scheduler_->num_running_groups(), 2);
  scheduler_->Reset(second);
  EXPECT_EQ(scheduler_->waiting_tokens(), 22) << "with what was sampled meanwhile";
  EXPECT_EQ(scheduler_->num_running_groups(), 1);
  EXPECT_EQ(group.running, 0);
  Add(5, /*priority=*/1);
  Step();
  Add(6, /*priority=*/2);
  Step();
  EXPECT_EQ(plan_.preempted.size(), 1u);
  EXPECT_EQ(scheduler_->num_running_groups(), 2);
  EXPECT_EQ(scheduler_->waiting_tokens(), second->tokens.size() + third->tokens.size());
  scheduler_->Remove(third);
  EXPECT_EQ(scheduler_->waiting_tokens(), second->tokens.size());
}

TEST_F(SchedulerTest, NobodyOvertakesTheHeadOfTheQueue) {
  Create(10, 8, 64);
  Add(20);  // 5 blocks
  Step();
  Add(24);  // 6 blocks do not fit beside it
  Add(2);   // would
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(scheduler_->num_waiting(), 2);
}

TEST_F(SchedulerTest, APrefixHitIsNotComputedAgain) {
  Create(100, 8, 64);
  Add(16, 0, 7);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 16)));
  Sequence* same = Add(16, 0, 7);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 4))) << "at most the prompt less one token, in whole blocks";
  EXPECT_EQ(same->cached_tokens, 12);
}

TEST_F(SchedulerTest, CachedBlocksGoBeforeASequenceIsPreempted) {
  Create(8, 8, 64);
  Add(16);
  Step();
  scheduler_->Remove(&sequences_.front());
  EXPECT_EQ(cache_->local().cached, 4);
  Add(27);
  Step();
  EXPECT_EQ(cache_->evicted_total(), 3);
  EXPECT_THAT(plan_.preempted, IsEmpty());
}

TEST_F(SchedulerTest, TheYoungestIsPreemptedAndComesBackBeforeThoseBehindIt) {
  Create(8, 8, 64, false);
  Sequence* old = Add(13);   // 4 blocks, the last with 3 free tokens
  Sequence* young = Add(8);  // 2 blocks
  Step();
  Sequence* last = Add(30);
  while (young->blocks.size() > 0) Step();
  EXPECT_THAT(plan_.preempted, ElementsAre(young));
  EXPECT_EQ(young->computed_tokens, 0);
  const int64_t tokens_then = static_cast<int64_t>(young->tokens.size());
  scheduler_->Remove(old);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, tokens_then))) << "recomputed with what it had generated";
  EXPECT_THAT(plan_.admitted, IsEmpty()) << "it ran before";
  EXPECT_EQ(last->computed_tokens, 0);
}

TEST_F(SchedulerTest, APreemptedSequenceFindsItsOwnBlocksWhereTheyWereNotNeeded) {
  Create(8, 8, 64);
  Sequence* old = Add(13);
  Sequence* young = Add(8);
  Step();
  while (young->blocks.size() > 0) Step();
  scheduler_->Remove(old);
  EXPECT_GT(cache_->local().cached, 0);
  const auto chunks = Step();
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_LT(chunks[0].second, static_cast<int64_t>(young->tokens.size()));
  EXPECT_EQ(young->cached_tokens, 0) << "what it found at its first start stays";
}

TEST_F(SchedulerTest, LargerPriorityDisplacesSmallerAtAdmission) {
  Create(10, 8, 64);
  Sequence* low = Add(30, 0);
  Step();
  Sequence* high = Add(20, 1);
  EXPECT_THAT(Step(), ElementsAre(Pair(high->id.value(), 20)));
  EXPECT_THAT(plan_.preempted, ElementsAre(low));
  scheduler_->Remove(high);
  Add(20, 0);
  EXPECT_THAT(Step(), ElementsAre(Pair(low->id.value(), testing::_)));
}

TEST_F(SchedulerTest, NobodyGivesWayWhereThatWouldNotBeEnough) {
  Create(10, 8, 64);
  Add(20, 1);
  Add(8, 0);
  Step();
  Add(24, 1);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(plan_.preempted, IsEmpty());
}

TEST_F(SchedulerTest, WhatSeveralLessUrgentOnesShareIsThereOnce) {
  Create(24, 8, 64);
  Add(30, 1);
  Add(32, 0, 7);
  Step();
  for (int i = 0; i < 2; ++i) Add(32, 0, 7);
  Step();
  ASSERT_EQ(scheduler_->num_running(), 4);
  ASSERT_EQ(cache_->local().used, 8 + 9);  // of 8 + 9 + 8 + 8 in their tables
  Add(68, 1);
  Step();
  EXPECT_THAT(plan_.preempted, IsEmpty());
}

TEST_F(SchedulerTest, ManyGiveWayForOneAfterOneLookAtTheirBlocks) {
  Create(24, 8, 64);
  CountingBlocks blocks(cache_.get());
  scheduler_ = std::make_unique<Scheduler>(Scheduler::Options{8, 64}, &blocks);
  Add(6, 1);
  for (int i = 0; i < 5; ++i) Add(14, 0);
  for (int i = 0; i < 2; ++i) Step();
  ASSERT_EQ(scheduler_->num_running(), 6);
  Add(60, 1);
  Step();
  EXPECT_THAT(plan_.preempted, SizeIs(4));
  EXPECT_EQ(blocks.asked(), 1);
}

TEST_F(SchedulerTest, WhoDoesNotFitIsLookedAtOnceHoweverManyAreAdmittedBehindIt) {
  Create(24, 8, 64);
  CountingBlocks blocks(cache_.get());
  scheduler_ = std::make_unique<Scheduler>(Scheduler::Options{8, 64}, &blocks);
  for (int i = 0; i < 3; ++i) Add(100);
  for (int i = 0; i < 4; ++i) Add(8);
  EXPECT_THAT(Step(), ElementsAre(Pair(4, 8), Pair(5, 8), Pair(6, 8), Pair(7, 8)));
  EXPECT_TRUE(plan_.waits);
  EXPECT_EQ(blocks.wishes(), 3);
}

TEST_F(SchedulerTest, WhatAPromptSharesInOwnMemoryIsMeasuredOnlyWhereItsPlaceHangsOnThat) {
  Create(24, 8, 64);
  CountingBlocks blocks(cache_.get());
  scheduler_ = std::make_unique<Scheduler>(Scheduler::Options{8, 64}, &blocks);
  Add(32, 0, 7);
  Step();
  Add(28);
  Step();
  ASSERT_EQ(scheduler_->num_running(), 2);
  ASSERT_EQ(cache_->num_available(), 24 - 9 - 7);
  const auto add_twice_lost = [this](int64_t tokens, int32_t first_token) {
    Sequence* sequence = Add(tokens, 0, first_token);
    sequence->losses = Scheduler::kMaxLosses;
    return sequence;
  };
  Sequence* sequence = add_twice_lost(40, 5000);
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_FALSE(scheduler_->is_running(sequence)) << "it shares nothing";
  EXPECT_EQ(blocks.measured(), 0);
  scheduler_->Remove(sequence);
  sequence = add_twice_lost(8, 5000);
  Step();
  EXPECT_TRUE(scheduler_->is_running(sequence)) << "there is room without that";
  EXPECT_EQ(blocks.measured(), 0);
  sequence = add_twice_lost(36, 7);
  Step();
  EXPECT_TRUE(scheduler_->is_running(sequence)) << "most of it is in use";
  EXPECT_EQ(blocks.measured(), 1);
}

TEST_F(SchedulerTest, OfTooManySequencesALessUrgentOneGivesWay) {
  Create(100, 2, 64);
  Add(8, 1);
  Sequence* low = Add(8, 0);
  Step();
  Add(8, 1);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(3, 8)));
  EXPECT_THAT(plan_.preempted, ElementsAre(low));
}

TEST_F(SchedulerTest, WhoIsMoreUrgentComesBeforeTheRestOfAPrompt) {
  Create(100, 8, 10);
  Add(50, 0);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 10)));
  Add(4, 1);
  Add(3, 0);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 4), Pair(1, 6))) << "and who is not stays behind it";
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 1), Pair(1, 9)));
}

TEST_F(SchedulerTest, AMoreUrgentPromptIsNotInterrupted) {
  Create(100, 8, 10);
  Add(30, 2);
  Add(30, 0);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 10)));
  Add(14, 1);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 10)));
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 10)));
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(3, 9)));
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(3, 5), Pair(2, 4)));
}

TEST_F(SchedulerTest, WhoseLastChunkEndedWithinABlockFindsWhatAnotherHasSinceComputed) {
  Create(100, 8, 50);
  Add(41, 0, 7);
  Sequence* same = Add(41, 0, 7);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 41), Pair(2, 9)));
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_EQ(same->cached_tokens, 31);
}

TEST_F(SchedulerTest, EqualPriorityNeverDisplaces) {
  Create(10, 8, 64);
  Add(30);
  Step();
  Add(20);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(plan_.preempted, IsEmpty());
}

TEST_F(SchedulerTest, RemoveWorksWhereverTheSequenceIs) {
  Create(10, 1, 64);
  Sequence* running = Add(5);
  Sequence* waiting = Add(5);
  Step();
  scheduler_->Remove(waiting);
  scheduler_->Remove(running);
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(cache_->local().used, 0);
}

// Every sequence ends, in the order of service among those that were there from the start and alike, within a bound.
TEST_F(SchedulerTest, RandomWorkAlwaysAdvancesTheOneServedFirst) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const int64_t num_blocks = 6 + rng() % 20;
    Create(num_blocks, 1 + rng() % 8, 1 + rng() % 30, rng() % 2);
    std::map<Sequence*, int64_t> goal;
    int added = 0;
    while (added < 30 || scheduler_->has_work()) {
      if (added < 30 && rng() % 2) {
        const int64_t total = 2 + rng() % (num_blocks * kBlockTokens - 2);
        const int64_t prompt = 1 + rng() % (total - 1);
        Sequence* sequence = Add(prompt, rng() % 10 == 0, rng() % 2 ? std::optional<int32_t>(7) : std::nullopt);
        goal[sequence] = total;
        ++added;
      }
      const Sequence* first = nullptr;
      for (Sequence& s : sequences_) {
        const bool live = static_cast<int64_t>(s.tokens.size()) < goal[&s];
        if (live && scheduler_->is_running(&s) && (first == nullptr || ServedBefore()(&s, first))) first = &s;
      }
      const int64_t before = first == nullptr ? 0 : first->computed_tokens;
      Step();
      const auto running = scheduler_->running();
      const Sequence* now =
          running.empty() ? nullptr : running.front();  // another one, if that came and is more urgent
      EXPECT_TRUE(now == nullptr || now->computed_tokens > (now == first ? before : 0));
      for (Sequence& s : sequences_) {
        if (s.remaining_tokens() >= 1 && static_cast<int64_t>(s.tokens.size()) == goal[&s]) {
          scheduler_->Remove(&s);
          goal[&s] = -1;
        }
      }
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_EQ(cache_->local().used, 0);
  }
}

}  // namespace
}  // namespace swiftcache::engine::sched
