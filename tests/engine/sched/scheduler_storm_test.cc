// SPDX-License-Identifier: Apache-2.0
// Everybody gets there, whatever becomes of the leases.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/engine/sched/scheduler_tiers_fixture.h"

namespace swiftcache::engine::sched {
namespace {

// Leases come, drain and break at random, memory is lent and comes back, copies end late or not at all, and it never
// stops. Who fits into owned memory ends in bounded time; so do the others, or they are exhausted or starve too long.
class Storm : public SchedulerTiersTest {
 protected:
  struct Totals {
    int64_t waits = 0, empty = 0, losses = 0, owned = 0, large = 0, again = 0, exhausted = 0, starved = 0,
            preempted = 0, reclaimed = 0;
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
    std::map<Sequence*, int64_t> goal, starved;
    int added = 0;
    for (int step = 0; added < 12 || scheduler_->has_work(); ++step) {
      ASSERT_LT(step, 6000) << "no end";
      if (added < 12 && rng_() % 3 == 0) {
        const int64_t blocks = rng_() % 4 == 0 ? num_blocks + potential : num_blocks;
        const int64_t total = 2 + rng_() % (blocks * kBlockTokens - 2);
        goal[Add(1 + rng_() % (total - 1), rng_() % 8 == 0)] = total;
        ++added;
      }
      Weather();
      const Chunks chunks = Step();
      totals.waits += plan_.waits;
      totals.empty += chunks.empty();
      totals.preempted += static_cast<int64_t>(plan_.preempted.size());
      Serve(chunks.empty(), totals);
      for (Sequence& s : sequences_) {
        if (goal[&s] < 0) continue;
        totals.owned += s.owned_only;
        const bool large = goal[&s] > num_blocks * kBlockTokens;
        EXPECT_TRUE(large || s.losses <= Scheduler::kMaxLosses) << "what runs from owned memory loses nothing";
        const int64_t batch = 42;
        EXPECT_LE(s.again_tokens, std::max(Scheduler::kMaxAgain, Scheduler::kMaxLosses) * s.tokens.size() + batch);
        int64_t& starves = starved[&s];
        starves = std::max<int64_t>(0, starves + (scheduler_->Starves(s) ? 1 : -1));
        const bool exhausted = scheduler_->IsExhausted(s), gives_up = starves > 200;
        EXPECT_TRUE(large || !(exhausted || gives_up)) << "what fits into own memory is promised an end";
        const bool done = s.remaining_tokens() == 1 && static_cast<int64_t>(s.tokens.size()) >= goal[&s];
        if (!done && !exhausted && !gives_up) continue;
        totals.losses += s.losses;
        totals.again += s.again_tokens;
        totals.large += large && done;
        totals.exhausted += exhausted && !done;
        totals.starved += gives_up && !done;
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
  void Weather() {
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
    const kv::PlaceRun run{total - count, count};
    const auto moves = cache_->ClearForLending(run, 4);
    if (!moves) return;
    for (const kv::Move& move : *moves) cache_->FinishMove(move);
    if (!cache_->Lend(run)) return;  // more than four had to move
    lent_.push_back(run);
  }
  void TakeBack() {
    cache_->TakeBack(lent_.back());
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
  std::vector<kv::PlaceRun> lent_;
};

TEST_F(Storm, EverybodyEndsInBoundedTime) {
  Totals totals;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Run(seed, totals);
    if (HasFailure()) return;
  }
  for (int64_t times : {totals.waits, totals.empty, totals.losses, totals.owned, totals.large, totals.again,
                        totals.starved, totals.preempted, totals.reclaimed}) {
    EXPECT_GT(times, 50) << "a part of the storm was hardly there";
  }
  EXPECT_GT(totals.exhausted, 0);
}

}  // namespace
}  // namespace swiftcache::engine::sched
