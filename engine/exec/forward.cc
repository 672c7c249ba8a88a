// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/forward.h"

#include "common/base/status_macros.h"

namespace swiftcache::engine::exec {

absl::StatusOr<std::span<const float>> Forward::Run(const sched::StepPlan& plan) {
  Gather(plan);
  progress_.fetch_add(1, std::memory_order_relaxed);
  RETURN_IF_ERROR(model_->Begin({.token_ids = token_ids_, .sequences = sequences_, .logit_rows = logit_rows_}));
  for (int64_t layer = 0; layer < model_->geometry().num_layers; ++layer) {
    RETURN_IF_ERROR(model_->RunLayer(layer));
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  return model_->Finish();
}

void Forward::Gather(const sched::StepPlan& plan) {
  token_ids_.clear();
  blocks_.clear();
  sequences_.clear();
  logit_rows_.clear();
  int64_t num_blocks = 0;
  for (const sched::Chunk& chunk : plan.chunks) num_blocks += chunk.sequence->blocks.size();
  blocks_.reserve(num_blocks);  // the spans below must not move
  for (const sched::Chunk& chunk : plan.chunks) {
    const sched::Sequence& sequence = *chunk.sequence;
    const auto first = sequence.tokens.begin() + sequence.computed_tokens;
    token_ids_.insert(token_ids_.end(), first, first + chunk.num_tokens);
    std::byte* const* const begin = blocks_.data() + blocks_.size();
    for (int64_t i = 0; i < sequence.blocks.size(); ++i) {
      blocks_.push_back(arena_->Address(kv::BlockId(cache_->place(sequence.blocks[i]).index)));
    }
    sequences_.push_back({.num_rows = chunk.num_tokens,
                          .context_tokens = sequence.computed_tokens,
                          .blocks = std::span(begin, sequence.blocks.size())});
    if (chunk.samples) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
}

}  // namespace swiftcache::engine::exec
