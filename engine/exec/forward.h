// SPDX-License-Identifier: Apache-2.0
// Runs a planned step through the model: rows in, logits out.
//
//   ASSIGN_OR_RETURN(std::span<const float> logits, forward.Run(plan));
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/arena.h"
#include "engine/kv/kv_cache.h"
#include "engine/models/model.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none, but progress() may be read by any thread. Ownership: borrows model and arena, owns the batch's
/// scratch. Errors: the model's.
class Forward {
 public:
  Forward(models::Model* model, const kv::Arena* arena, const kv::KvCache* cache)
      : model_(model), arena_(arena), cache_(cache) {}

  /// Logits [number of chunks that sample][vocab_size], in the order of the chunks; valid until the next Run.
  absl::StatusOr<std::span<const float>> Run(const sched::StepPlan& plan);
  /// Counts up with every Run and every layer of it: a long step is not a loop that stands still.
  int64_t progress() const { return progress_.load(std::memory_order_relaxed); }

 private:
  void Gather(const sched::StepPlan& plan);

  models::Model* const model_;
  const kv::Arena* const arena_;
  const kv::KvCache* const cache_;
  std::vector<int32_t> token_ids_;  // [rows]
  std::vector<std::byte*> blocks_;  // of all sequences, one after the other
  std::vector<models::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::atomic<int64_t> progress_{0};
};

}  // namespace swiftcache::engine::exec
