// SPDX-License-Identifier: Apache-2.0
// Scheduler: what becomes of a plan.
#include <algorithm>
#include <optional>
#include <span>

#include "engine/sched/scheduler.h"
#include "glog/logging.h"

namespace swiftcache::engine::sched {

void Scheduler::NoteComputed(const StepPlan& plan) {
  left_out_readers_ = plan.leaves_out_readers;
  for (const auto& [sequence, num_tokens, samples] : plan.chunks) {
    const int64_t begin = sequence->computed_tokens, end = begin + num_tokens;
    sequence->again_tokens += std::max<int64_t>(0, std::min(end, sequence->lost_tokens) - begin);
    sequence->furthest_tokens = std::max(sequence->furthest_tokens, end);
  }
}

void Scheduler::Commit(const StepPlan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    if (sequence.blocks.size() == 0) continue;  // reset
    sequence.computed_tokens += chunk.num_tokens;
    cache_->Commit(sequence.blocks, sequence.tokens, sequence.computed_tokens);
  }
}

void Scheduler::Reset(Sequence* sequence) {
  ++sequence->losses;
  WaitAgain(sequence);
  sequence->lost_tokens = sequence->furthest_tokens;
}

std::optional<StepPlan> Scheduler::PlanAgain(std::span<const ChunkOnce> chunks) const {
  StepPlan plan{.leaves_out_readers = leaves_out_readers_};
  for (const ChunkOnce& chunk : chunks) {
    const auto is_its = [&](const Sequence* sequence) { return sequence->id == chunk.sequence; };
    const auto it = std::find_if(running_.begin(), running_.end(), is_its);
    if (it == running_.end()) return std::nullopt;
    CHECK_EQ((*it)->computed_tokens, chunk.begin) << "it was planned anew since";
    plan.chunks.push_back({*it, chunk.num_tokens, chunk.num_tokens == (*it)->remaining_tokens()});
  }
  return plan;
}

}  // namespace swiftcache::engine::sched
