// SPDX-License-Identifier: Apache-2.0
// The step loop's interface to a model: one call takes the rows of a step and returns the chosen tokens. KV that is
// streamed layer by layer is made available through a gate (ARCHITECTURE.md, layer streaming).
//
//   ForwardResult result;
//   model.Run({.token_ids = ids, .sequences = sequences, .logit_rows = last_rows, .samples = samples},
//             /*gate=*/nullptr, result).Wait();
//   RETURN_IF_ERROR(result.status);
//   ...result.tokens[i] is what samples[i] chose...
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/fence.h"
#include "engine/backend/sampling.h"
#include "engine/backend/step.h"

namespace swiftcache::engine::models {

/// The dimensions of a model. Units: tokens, elements.
struct ModelGeometry {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_context_tokens = 0;
};

/// One step's work. Rows of sequence i follow those of sequence i - 1. Ownership: borrowed until Run's fence has
/// passed.
struct ForwardBatch {
  /// [num_rows]: ids in [0, vocab_size), or -1 - i for the token that samples[i] of the step before chose.
  std::span<const int32_t> token_ids;
  std::span<const backend::StepSequence> sequences;
  std::span<const backend::StreamedBlock> streamed = {};  // REQUIRES where there are some: a gate
  std::span<const backend::WordCheck> checks = {};        // of leases that are read where they lie
  std::span<const int32_t> logit_rows = {};               // rows whose logits are wanted, each once, ascending, and
  std::span<const backend::SampleRow> samples = {};       // what is chosen from these; logits_row i is of logit_rows[i]
  /// Of a step that goes on where the one before was cut short: the pieces which that one has computed. REQUIRES: the same
  /// rows; what it wrote of their KV is in their blocks, wherever these lie now; it lost nothing.
  int64_t first_piece = 0;
};

/// The result of a step; to be read when its fence was waited for.
struct ForwardResult {
  absl::Status status;                   // where it is not OK, the rest means nothing, and no KV that it wrote
  std::vector<backend::Sampled> tokens;  // [samples.size()]; none where cut short
  std::vector<int32_t> changed;          // the checks, by index, that did not hold after the last read
  bool cut_short = false;                // the gate wanted no more
  int64_t pieces = 0;                    // of the model's work, computed so far: what ForwardBatch::first_piece wants
};

/// A loaded decoder. A row's numbers depend on its own sequence alone: not on the other rows of the batch, on how its
/// prompt was split into steps, or on the thread count (ARCHITECTURE.md, the numeric contract).
/// Thread-safety: none; one step loop calls it. Ownership: owns weights and scratch. Errors: device failures, in the
/// result; wrong use (ids out of range, too many rows) is the caller's bug and checked.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelGeometry& geometry() const = 0;
  /// Submits a step: embeds the rows, unless it goes on; then each layer writes their K and V into the blocks, attends, and runs its MLP.
  /// A gate is called before each layer's attention, when that attention has read its KV, and between the products
  /// behind it. The fence has passed when all is done; `gate` and `result` are borrowed until it was waited for. Steps
  /// are done in the order of their submission: a step may be submitted before the previous one is done, and use its
  /// tokens. REQUIRES: at most the `max_batch_rows` that the model was created with.
  virtual backend::Fence Run(const ForwardBatch& batch, backend::LayerGate* gate, ForwardResult& result) = 0;
};

}  // namespace swiftcache::engine::models
