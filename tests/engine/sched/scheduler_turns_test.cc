// SPDX-License-Identifier: Apache-2.0
// Sequences that read leases and prompts that do not take turns.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/sched/counting_blocks.h"
#include "tests/engine/sched/scheduler_tiers_fixture.h"

namespace swiftcache::engine::sched {
namespace {

constexpr int64_t kStep = 1024;

class SchedulerTurnsTest : public SchedulerTiersTest {
 protected:
  // Own memory for all, and a lease.
  void CreateWith(int64_t limit, int64_t num_blocks = 4000) {
    Create(num_blocks, {.max_num_batched_tokens = kStep, .max_tokens_touching_regions = limit});
    lease_ = cache_->AddRegion(1000);
  }
  // Runs, with its first blocks in the lease and `left` tokens to compute: own memory is short while it begins.
  Sequence* AddReader(int64_t left) {
    const int64_t squeezed = cache_->local().free - 8;
    EXPECT_EQ(cache_->ReserveLocal(squeezed), kv::Growth::kDone);
    Sequence* reader = Add(60);
    while (reader->remaining_tokens() > 1) StepAndSpill();
    EXPECT_GT(cache_->LeasedBlocks(reader->blocks), 0);
    cache_->ReleaseReserved(squeezed);
    for (int64_t i = 1; i < left; ++i) reader->tokens.push_back(next_token_--);
    return reader;
  }
  // To the lease, as if own memory were short, or back.
  void MoveSome(int64_t max) {
    const int64_t squeezed = max % 2 ? cache_->local().free - 1 : 0;
    EXPECT_TRUE(squeezed <= 0 || cache_->ReserveLocal(squeezed) == kv::Growth::kDone);
    for (const kv::Move& move : cache_->TakeMoves(max, max)) cache_->FinishMove(move);
    if (squeezed > 0) cache_->ReleaseReserved(squeezed);
  }
  static int64_t Of(const Chunks& chunks, const Sequence* sequence) {
    int64_t tokens = 0;
    for (const auto& [id, count] : chunks) tokens += id == sequence->id.value() ? count : 0;
    return tokens;
  }
  static int64_t Sum(const Chunks& chunks) {
    int64_t tokens = 0;
    for (const auto& [id, count] : chunks) tokens += count;
    return tokens;
  }

  kv::RegionId lease_;
};

TEST_F(SchedulerTurnsTest, APromptThatReadsNoLeaseHasFullStepsBesideADecodeThatReadsOne) {
  for (const int64_t limit : {16, 256}) {
    SCOPED_TRACE(limit);
    CreateWith(limit);
    const Sequence* reader = AddReader(1);
    const Sequence* prompt = Add(8000);
    int64_t steps = 0;
    while (prompt->remaining_tokens() > kStep) {
      EXPECT_EQ(Step(), (Chunks{{2, kStep}}));
      EXPECT_EQ(Step(), (Chunks{{1, 1}, {2, limit - 1}}));
      steps += 2;
    }
    while (prompt->tokens.size() == prompt->prompt_tokens) Step(), ++steps;
    RecordProperty(absl::StrCat("steps_", limit), steps);
    EXPECT_LE(steps, limit == 16 ? 16 : 14) << "534 and 32 where every step kept to the limit";
    EXPECT_GE(reader->tokens.size() - reader->prompt_tokens, steps / 2);
  }
}

TEST_F(SchedulerTurnsTest, DecodesThatReadNoneAreInEveryStep) {
  CreateWith(16);
  Sequence* reader = AddReader(1);
  const Sequence* decode = Add(8);
  Step();
  const Sequence* prompt = Add(5000);
  for (int i = 0; i < 6; ++i) {
    const Chunks chunks = Step();
    EXPECT_EQ(Of(chunks, decode), 1);
    EXPECT_EQ(Of(chunks, reader), i % 2);
    EXPECT_EQ(Of(chunks, prompt), i % 2 ? 14 : kStep - 1);
  }
}

TEST_F(SchedulerTurnsTest, TwoPromptsBothGetOnWhoeverIsServedFirst) {
  for (const int64_t limit : {16, 256}) {
    for (const int32_t priority : {-1, 1}) {
      SCOPED_TRACE(testing::Message() << limit << " " << priority);
      CreateWith(limit);
      Sequence* reader = AddReader(1);
      const Sequence* prompt = Add(5000, -priority);
      Step();
      Step();
      for (int i = 0; i < 3000; ++i) reader->tokens.push_back(next_token_--);
      for (int i = 0; i < 6; ++i) {
        const Chunks chunks = Step();
        EXPECT_EQ(Of(chunks, prompt), i % 2 ? 0 : kStep);
        EXPECT_EQ(Of(chunks, reader), i % 2 ? limit : 0) << "all that a step on leases may have";
      }
    }
  }
}

TEST_F(SchedulerTurnsTest, PromptsThatComeDoNotWaitForAPrefillOnLeases) {
  CreateWith(16);
  AddReader(3000);
  Add(200);
  Add(200);
  EXPECT_EQ(Step(), (Chunks{{2, 200}, {3, 200}}));
  EXPECT_EQ(Step(), (Chunks{{2, 1}, {3, 1}, {1, 14}}));
  Add(40);
  EXPECT_EQ(Step(), (Chunks{{2, 1}, {3, 1}, {4, 40}}));
}

TEST_F(SchedulerTurnsTest, WhoReadsLeasesIsKnownWithoutALookAtAllBlocks) {
  const Scheduler::Options options{.max_num_batched_tokens = kStep, .max_tokens_touching_regions = 16};
  Create(4000, options);
  CountingBlocks blocks(cache_.get());
  scheduler_ = std::make_unique<Scheduler>(options, &blocks);
  lease_ = cache_->AddRegion(1000);
  AddReader(1);
  const Sequence* longer = Add(5000);
  while (longer->remaining_tokens() != 1) Step();
  Add(8000);
  Step();
  for (int i = 0; i < 4; ++i) {
    const int64_t before = blocks.looked_at();
    Step();
    EXPECT_LE(blocks.looked_at() - before, kStep / kBlockTokens + 2) << "what came with the last step";
  }
}

// Who is only one of those that read leases: the others would wait for a third step.
TEST_F(SchedulerTurnsTest, WhoReadsLeasesIsLeftOutOrNot) {
  CreateWith(16);
  Sequence* first = AddReader(1);
  Sequence* second = AddReader(1);
  Add(15);
  EXPECT_EQ(Step(), (Chunks{{3, 15}})) << "one token is left for two";
  const Chunks chunks = Step();
  EXPECT_EQ(Of(chunks, first) + Of(chunks, second), 2);
  Add(13, /*priority=*/1);  // is served first, and has its tokens already
  EXPECT_EQ(Step(), (Chunks{{3, 1}, {4, 13}, {1, 1}, {2, 1}}));
}

TEST_F(SchedulerTurnsTest, APromptThatFindsItsBeginningInALeaseIsAdmittedWithinTheLimit) {
  CreateWith(16);
  Sequence* reader = AddReader(1);
  Sequence& same = sequences_.emplace_back();
  same.id = SequenceId(9);
  same.tokens = reader->tokens;
  for (int i = 0; i < 100; ++i) same.tokens.push_back(next_token_--);
  scheduler_->Add(&same);
  const Chunks chunks = Step();
  EXPECT_LE(Sum(chunks), 16);
  EXPECT_GT(same.cached_leased_tokens, 0);
  EXPECT_GT(Of(chunks, &same), 0);
}

TEST_F(SchedulerTurnsTest, WhatFitsIsComputedTogether) {
  CreateWith(256);
  AddReader(1);
  Add(200);
  EXPECT_EQ(Step(), (Chunks{{2, 200}, {1, 1}}));
  Add(3);
  EXPECT_EQ(Step(), (Chunks{{2, 1}, {3, 3}, {1, 1}}));
  EXPECT_FALSE(plan_.leaves_out_readers);
}

// With decodes and without.
TEST_F(SchedulerTurnsTest, NoTurnsAreTakenForStepsThatAreTwiceAsLong) {
  for (const int64_t left : {1, 100}) {
    CreateWith(kStep / 2);
    const Sequence* reader = AddReader(left);
    const Sequence* prompt = Add(8000);
    for (int i = 0; i < 4; ++i) {
      const Chunks chunks = Step();
      EXPECT_EQ(Sum(chunks), kStep / 2);
      EXPECT_GT(Of(chunks, prompt), 0);
      EXPECT_GT(Of(chunks, reader), 0);
    }
  }
}

// They are not held back: a step on leases has a token for each.
TEST_F(SchedulerTurnsTest, DecodesTakeNoTurns) {
  CreateWith(16);
  Sequence* reader = AddReader(1);
  std::vector<Sequence*> decodes;
  for (int i = 0; i < 20; ++i) decodes.push_back(Add(4));
  for (int i = 0; i < 10; ++i) Step();
  for (int i = 0; i < 500; ++i) reader->tokens.push_back(next_token_--);
  for (int i = 0; i < 4; ++i) {
    const Chunks chunks = Step();
    EXPECT_EQ(Sum(chunks), 21);
    EXPECT_EQ(Of(chunks, reader), 1);
  }
}

// Or it would wait for both.
TEST_F(SchedulerTurnsTest, ADecodeThatIsLeftOutHasItsTokenInTheTimeOfOneStep) {
  CreateWith(16);
  Sequence* reader = AddReader(1);
  const Sequence* prompt = Add(5000);
  scheduler_->LimitPromptTokensBesideDecodes(100, /*on_leases=*/100);
  for (int i = 0; i < 4; ++i) {
    const Chunks chunks = Step();
    EXPECT_EQ(Of(chunks, prompt), i % 2 ? 15 : 50);
    EXPECT_EQ(Of(chunks, reader), i % 2);
  }
  scheduler_->LimitPromptTokensBesideDecodes(30, /*on_leases=*/30);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(Step(), (Chunks{{1, 1}, {2, 15}})) << "half of that is no more than all may have";
}

TEST_F(SchedulerTurnsTest, BesideDecodesStepsOnLeasesHaveALimitOfTheirOwn) {
  CreateWith(16);
  const Sequence* reader = AddReader(1);
  const Sequence* prompt = Add(5000);
  scheduler_->LimitPromptTokensBesideDecodes(100, /*on_leases=*/8);
  for (int i = 0; i < 4; ++i) {
    const Chunks chunks = Step();
    EXPECT_EQ(Of(chunks, prompt), i % 2 ? 4 : 50) << "half of either: the two steps take the time of one";
    EXPECT_EQ(Of(chunks, reader), i % 2);
  }
}

TEST_F(SchedulerTurnsTest, AStepThatWasNotComputedTookNobodysTurn) {
  CreateWith(16);
  AddReader(1);
  Add(5000);
  Step();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(scheduler_->Plan().leaves_out_readers);
  Step();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scheduler_->Plan().leaves_out_readers);
  Step();
  EXPECT_FALSE(scheduler_->Plan().leaves_out_readers);
}

// What it has computed would be lost with it.
TEST_F(SchedulerTurnsTest, AStepThatWasCutIsPlannedAgainWhoeverHasCome) {
  CreateWith(16);
  Sequence* reader = AddReader(17);
  Add(100);
  ASSERT_EQ(Step(), (Chunks{{2, 100}}));
  ASSERT_EQ(Plan(), (Chunks{{2, 1}, {1, 15}}));
  const std::vector<ChunkOnce> cut = {{SequenceId(2), 100, 1}, {SequenceId(1), reader->computed_tokens, 15}};
  Add(5000, /*priority=*/1);
  for (int i = 0; i < 3; ++i) {
    const std::optional<StepPlan> again = scheduler_->PlanAgain(cut);
    ASSERT_TRUE(again);
    EXPECT_EQ(ChunksOf(*again), (Chunks{{2, 1}, {1, 15}}));
    EXPECT_TRUE(again->chunks[0].samples && !again->chunks[1].samples);
    EXPECT_FALSE(again->leaves_out_readers);
  }
  scheduler_->Reset(reader);
  EXPECT_FALSE(scheduler_->PlanAgain(cut));
}

TEST_F(SchedulerTurnsTest, AStepThatLeavesReadersOutDoesSoAgain) {
  CreateWith(16);
  AddReader(1);
  Add(5000);
  ASSERT_EQ(Plan(), (Chunks{{2, kStep}}));
  EXPECT_TRUE(scheduler_->PlanAgain(std::vector<ChunkOnce>{{SequenceId(2), 0, kStep}})->leaves_out_readers);
}

TEST_F(SchedulerTurnsTest, WhereTheOthersHaveNoRoomItIsTheReadersTurn) {
  CreateWith(16, /*num_blocks=*/64);
  const Sequence* reader = AddReader(1);
  const Sequence* prompt = Add(400);
  while (Of(Step(), prompt) > 0) {
  }
  EXPECT_TRUE(prompt->waits_for_room) << "for stores";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Of(Step(), reader), 1);
  EXPECT_EQ(Sum(Step()), 0) << "it needs a block, too";
  StartMoves();
  FinishMoves();
  Step();
  EXPECT_GT(Of(Step(), prompt), 0);
}

// Whatever comes and goes, and wherever its blocks move: each decode has a token in every second step, those that read
// no lease in every step, and the first prompt of each kind gets on in every second one.
TEST_F(SchedulerTurnsTest, NobodyIsPassedOverTwice) {
  int64_t turns = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    CreateWith(seed % 2 ? 16 : 256, /*num_blocks=*/3000);
    std::map<const Sequence*, std::pair<bool, int>> passed_over;  // whether it reads leases, and how often
    for (int step = 0; step < 60; ++step) {
      if (rng() % 3 == 0) Add(1 + rng() % 3000);
      if (rng() % 4 == 0) MoveSome(1 + rng() % 200);
      if (scheduler_->num_running() > 12) scheduler_->Remove(scheduler_->running()[rng() % 12]);
      std::vector<std::pair<const Sequence*, bool>> expected;  // and whether in each step
      bool prompts[2] = {};
      for (const Sequence* sequence : scheduler_->running()) {
        const bool reads = cache_->LeasedBlocks(sequence->blocks) > 0, decodes = sequence->remaining_tokens() == 1;
        if (decodes || !std::exchange(prompts[reads], true)) expected.push_back({sequence, decodes && !reads});
      }
      const Chunks chunks = Step();
      turns += plan_.leaves_out_readers;
      std::map<const Sequence*, std::pair<bool, int>> still;
      for (const auto& [sequence, always] : expected) {
        if (sequence->waits_for_room || !scheduler_->is_running(sequence)) continue;
        const bool reads = cache_->LeasedBlocks(sequence->blocks) > 0;
        int& times = still[sequence].second;
        still[sequence].first = reads;
        if (Of(chunks, sequence) > 0) continue;
        const auto before = passed_over.find(sequence);
        times = 1 + (before != passed_over.end() && before->second.first == reads ? before->second.second : 0);
        EXPECT_LE(times, always ? 0 : 1) << "sequence " << sequence->id.value() << " in step " << step;
      }
      passed_over = std::move(still);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(turns, 300);
}

}  // namespace
}  // namespace swiftcache::engine::sched
