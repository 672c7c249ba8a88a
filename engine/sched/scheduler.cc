// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::sched {

struct Scheduler::Step {
  StepPlan plan;
  int64_t budget_tokens = 0;
};

// A step has a token for each running sequence: more of them than tokens in a step would only hold blocks and wait.
Scheduler::Scheduler(const Options& options, kv::RegularCache* cache)
    : options_{std::min(options.max_num_seqs, options.max_num_batched_tokens), options.max_num_batched_tokens},
      cache_(cache) {
  CHECK_GT(options_.max_num_seqs, 0);
}

void Scheduler::Add(Sequence* sequence) {
  CHECK(!sequence->tokens.empty());
  CHECK_LE(cache_->BlocksFor(static_cast<int64_t>(sequence->tokens.size())), cache_->num_blocks());
  CHECK(waiting_.insert(sequence).second);
}

void Scheduler::Remove(Sequence* sequence) {
  if (waiting_.erase(sequence) == 0) std::erase(running_, sequence);
  cache_->Release(sequence->blocks);
  sequence->computed_tokens = 0;
}

StepPlan Scheduler::Plan() {
  Step step{.plan = {}, .budget_tokens = options_.max_num_batched_tokens};
  PlanDecodes(step);
  PlanPrefills(step);
  if (step.plan.preempted.empty()) Admit(step);
  CHECK(!step.plan.chunks.empty() || !has_work()) << "the sequence served first does not advance";
  return std::move(step.plan);
}

void Scheduler::Commit(const StepPlan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    sequence.computed_tokens += chunk.num_tokens;
    cache_->Commit(sequence.blocks, sequence.tokens, sequence.computed_tokens);
  }
}

// One token is left for the sequence served first where that one is still in its prefill.
void Scheduler::PlanDecodes(Step& step) {
  const int64_t kept = !running_.empty() && running_.front()->remaining_tokens() > 1 ? 1 : 0;
  for (size_t i = 0; i < running_.size() && step.budget_tokens > kept; ++i) {
    Sequence* sequence = running_[i];
    if (sequence->remaining_tokens() != 1) continue;
    if (MakeRoomFor(step, sequence, sequence->computed_tokens + 1)) AddChunk(step, sequence, 1);
  }
}

// A chunk is cut to the blocks that are left; others give way only where not even one token fits.
void Scheduler::PlanPrefills(Step& step) {
  for (size_t i = 0; i < running_.size() && step.budget_tokens > 0; ++i) {
    Sequence* sequence = running_[i];
    if (sequence->remaining_tokens() <= 1) continue;
    if (!MakeRoomFor(step, sequence, sequence->computed_tokens + 1)) continue;
    AddChunk(step, sequence, std::min({sequence->remaining_tokens(), step.budget_tokens, Fitting(*sequence)}));
  }
}

void Scheduler::Admit(Step& step) {
  while (step.budget_tokens > 0 && !waiting_.empty()) {
    Sequence* sequence = *waiting_.begin();
    if (!HasPlaceFor(*sequence)) {
      if (!MayDisplaceFor(*sequence)) return;
      PreemptLast(step);
      continue;
    }
    waiting_.erase(waiting_.begin());
    running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, ServedBefore()), sequence);
    sequence->computed_tokens = cache_->Attach(sequence->blocks, sequence->cache_salt, sequence->tokens);
    if (!sequence->cached_tokens) {
      sequence->cached_tokens = sequence->computed_tokens;
      step.plan.admitted.push_back(sequence);
    }
    AddChunk(step, sequence, std::min({sequence->remaining_tokens(), step.budget_tokens, Fitting(*sequence)}));
  }
}

void Scheduler::AddChunk(Step& step, Sequence* sequence, int64_t num_tokens) {
  CHECK_GT(num_tokens, 0);
  CHECK(cache_->Grow(sequence->blocks, sequence->computed_tokens + num_tokens));
  step.plan.chunks.push_back({sequence, num_tokens, num_tokens == sequence->remaining_tokens()});
  step.budget_tokens -= num_tokens;
}

// Makes the sequence's blocks cover `tokens`; those served after it give way. False: it has to wait for those before
// it.
bool Scheduler::MakeRoomFor(Step& step, Sequence* sequence, int64_t tokens) {
  while (!cache_->Grow(sequence->blocks, tokens)) {
    if (running_.back() == sequence) return false;
    PreemptLast(step);
  }
  return true;
}

// The victim may already have a part in this step, or have been admitted by it.
void Scheduler::PreemptLast(Step& step) {
  Sequence* victim = running_.back();
  running_.pop_back();
  std::erase_if(step.plan.chunks, [&](const Chunk& chunk) {
    if (chunk.sequence != victim) return false;
    step.budget_tokens += chunk.num_tokens;
    return true;
  });
  cache_->Release(victim->blocks);
  victim->computed_tokens = 0;
  waiting_.insert(victim);
  step.plan.preempted.push_back(victim);
}

// One block more than its tokens need, so that its first output does not preempt somebody. Blocks that it shares with
// running sequences cost nothing; idle ones that it would take stop being available.
bool Scheduler::HasPlaceFor(const Sequence& sequence) const {
  if (num_running() >= options_.max_num_seqs) return false;
  if (running_.empty()) return true;
  const kv::PrefixTree::Length cached = cache_->Measure(sequence.cache_salt, sequence.tokens);
  int64_t needed = MissingBlocks(sequence) - cached.blocks + cached.idle_blocks + 1;
  for (const Sequence* other : running_) needed += MissingBlocks(*other);
  return needed <= cache_->num_available();
}

bool Scheduler::MayDisplaceFor(const Sequence& sequence) const {
  return !running_.empty() && running_.back()->priority < sequence.priority;
}

// Tokens after computed_tokens for which there are blocks.
int64_t Scheduler::Fitting(const Sequence& sequence) const {
  return (sequence.blocks.size() + cache_->num_available()) * cache_->block_tokens() - sequence.computed_tokens;
}

int64_t Scheduler::MissingBlocks(const Sequence& sequence) const {
  const int64_t wanted = cache_->BlocksFor(static_cast<int64_t>(sequence.tokens.size()));
  return std::max<int64_t>(0, wanted - sequence.blocks.size());
}

bool Scheduler::is_running(const Sequence* sequence) const {
  return std::binary_search(running_.begin(), running_.end(), sequence, ServedBefore());
}

absl::Status Scheduler::CheckInvariants() const {
  std::vector<const kv::BlockTable*> tables;
  for (const Sequence* sequence : running_) {
    tables.push_back(&sequence->blocks);
    if (sequence->blocks.size() < cache_->BlocksFor(sequence->computed_tokens)) {
      return absl::InternalError(absl::StrCat("sequence ", sequence->id.value(), " has ", sequence->blocks.size(),
                                              " blocks for ", sequence->computed_tokens, " computed tokens"));
    }
  }
  for (const Sequence* sequence : waiting_) {
    if (sequence->blocks.size() != 0 || sequence->computed_tokens != 0) {
      return absl::InternalError(absl::StrCat("sequence ", sequence->id.value(), " waits and holds blocks"));
    }
  }
  if (!std::is_sorted(running_.begin(), running_.end(), ServedBefore())) {
    return absl::InternalError("running sequences are out of order");
  }
  return cache_->CheckInvariants(tables);
}

}  // namespace swiftcache::engine::sched
