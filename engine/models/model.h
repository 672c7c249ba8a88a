// SPDX-License-Identifier: Apache-2.0
// A decoder as the step loop sees it: embed, run layer after layer, read logits. The loop drives the layers itself, so
// that KV slices can come and go between them (DESIGN section 4, layer streaming).
//
//   RETURN_IF_ERROR(model.Begin(batch));
//   for (int64_t l = 0; l < model.geometry().num_layers; ++l) RETURN_IF_ERROR(model.RunLayer(l));
//   ASSIGN_OR_RETURN(std::span<const float> logits, model.Finish());
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace swiftcache::engine::models {

/// What a model fixes. Units: tokens, elements.
struct ModelGeometry {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_context_tokens = 0;
};

/// The rows of one sequence in a step: `num_rows` new tokens at positions context_tokens, context_tokens + 1, ...
struct SequenceRows {
  int64_t num_rows = 0;
  int64_t context_tokens = 0;  // tokens whose KV is already in the blocks
  /// Where the KV lies: for each block of the sequence, the address of that block's layer-0 slice (KvLayout); covers
  /// context_tokens + num_rows tokens. Layer l's slice is at address + l * slice_bytes().
  std::span<std::byte* const> blocks;
};

/// One step's work. Rows of sequence i follow those of sequence i - 1.
/// Ownership: borrowed from Begin to Finish.
struct ForwardBatch {
  std::span<const int32_t> token_ids;  // [num_rows], ids in [0, vocab_size)
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
};

/// A loaded decoder. A row's numbers depend on its own sequence alone: not on the rows beside it, not on how its prompt
/// was cut, not on the thread count (DESIGN section 4, "Numbers do not depend ...").
/// Thread-safety: none; one step loop calls it. Ownership: owns weights and scratch. Errors: device failures; wrong use
/// (order of calls, ids out of range) is the caller's bug and checked.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelGeometry& geometry() const = 0;
  /// Embeds the rows. REQUIRES: at most the `max_batch_rows` the model was created with.
  virtual absl::Status Begin(const ForwardBatch& batch) = 0;
  /// Runs one layer: writes the rows' K and V into the blocks, attends, feeds forward. Layers in ascending order.
  virtual absl::Status RunLayer(int64_t layer) = 0;
  /// Logits of batch.logit_rows: f32 [logit_rows.size()][vocab_size], valid until the next Begin.
  virtual absl::StatusOr<std::span<const float>> Finish() = 0;
};

}  // namespace swiftcache::engine::models
