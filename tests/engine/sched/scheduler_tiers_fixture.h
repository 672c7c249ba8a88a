// SPDX-License-Identifier: Apache-2.0
// A scheduler over a cache with leases, whose copies and losses the test plays.
#pragma once

#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::sched {

inline constexpr int64_t kBlockTokens = 4;
using Chunks = std::vector<std::pair<int64_t, int64_t>>;  // id and tokens

class SchedulerTiersTest : public ::testing::Test {
 protected:
  void Create(int64_t num_blocks, const Scheduler::Options& options, int64_t potential = 1000,
              int64_t watermark_blocks = 1) {
    sequences_.clear();  // before the cache that they hold blocks of
    cache_ = std::make_unique<kv::KvCache>(kv::KvCache::Options{.num_blocks = num_blocks,
                                                                .block_tokens = kBlockTokens,
                                                                .may_borrow = true,
                                                                .watermark_blocks = watermark_blocks});
    cache_->SetPotentialRegionBlocks(potential, /*reserved=*/0, /*leasable=*/0);
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
  static Chunks ChunksOf(const StepPlan& plan) {
    Chunks chunks;
    for (const Chunk& chunk : plan.chunks) chunks.emplace_back(chunk.sequence->id.value(), chunk.num_tokens);
    return chunks;
  }
  Chunks Plan() {
    plan_ = scheduler_->Plan();
    return ChunksOf(plan_);
  }
  Chunks Step() {
    Chunks chunks = Plan();
    scheduler_->NoteComputed(plan_);
    scheduler_->Commit(plan_);
    for (const Chunk& chunk : plan_.chunks) {
      if (chunk.samples) chunk.sequence->tokens.push_back(next_token_--);
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
      if (cache_->ReadersOf(lease).Has(sequence->blocks)) scheduler_->Reset(sequence);
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

}  // namespace swiftcache::engine::sched
