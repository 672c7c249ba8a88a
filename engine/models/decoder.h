// SPDX-License-Identifier: Apache-2.0
// The one decoder of Llama, Qwen2 and Qwen3: pre-norm attention and a gated MLP around a residual stream, written in
// the operations of a backend.
//
//   ASSIGN_OR_RETURN(auto model, Decoder::Create(config, weights, {.max_batch_rows = 512}, std::move(backend)));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model.h"

namespace swiftcache::engine::models {

/// Thread-safety, errors: Model's. Ownership: owns the backend and everything on it.
class Decoder final : public Model {
 public:
  /// Rows of one step. Room for `max_logit_rows` rows of logits, and to sample from them, is allocated at first, before
  /// KV memory takes what is left; a step that needs more grows it.
  struct Rows {
    int64_t max_batch_rows = 1;
    int64_t max_logit_rows = 1;
  };
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const loader::ModelConfig& config,
                                                         const loader::Weights& weights, const Rows& rows,
                                                         std::unique_ptr<backend::Backend> backend,
                                                         const std::function<bool()>& unwanted = nullptr);

  const ModelGeometry& geometry() const override { return geometry_; }
  backend::Fence Run(const ForwardBatch& batch, backend::LayerGate* gate, ForwardResult& result) override;

  /// Of the last step's first `rows` logit_rows: f32 [rows][vocab_size], valid until the next. For tests and tools.
  absl::StatusOr<std::span<const float>> Logits(int64_t rows) { return backend_->Download(*logits_, rows); }
  /// Row r of the residual stream as the last step left it: f32 [hidden]; of a step that was not cut short, the row of
  /// logit_rows[r]. For tests that compare layer by layer; once a step.
  absl::StatusOr<std::vector<float>> ResidualRow(int64_t row);
  /// Bytes of weights that a step of one row reads.
  int64_t weight_bytes() const;
  /// Rows of logits there is room for.
  int64_t logit_rows() const { return logits_->rows(); }
  const backend::Backend& backend() const { return *backend_; }
  const backend::WeightReport& weights() const { return backend_->weights(); }

 private:
  Decoder(const loader::ModelConfig& config, const Rows& rows, std::unique_ptr<backend::Backend> backend);
  absl::Status Load(const loader::Weights& weights, const std::function<bool()>& unwanted);
  absl::Status AllocateActivations();
  absl::Status EnsureLogits(int64_t rows);
  void Check(const ForwardBatch& batch) const;
  absl::Status Submit(const ForwardBatch& batch, backend::LayerGate* gate, ForwardResult& result);
  absl::Status RunPiece(const ForwardBatch& batch, int64_t piece, backend::LayerGate* gate, ForwardResult& result);
  absl::Status Attend(const ForwardBatch& batch, int64_t layer, backend::LayerGate* gate, ForwardResult& result);
  absl::Status KeepWanted(const ForwardBatch& batch);
  absl::Status GateAndUp(const LayerWeights& weights, int64_t rows);
  absl::Status Down(const LayerWeights& weights, int64_t rows);
  absl::Status ChooseTokens(const ForwardBatch& batch, ForwardResult& result);
  const backend::Matrix& head() const { return outer_.lm_head ? *outer_.lm_head : *outer_.embedding; }

  const loader::ModelConfig config_;
  const Rows max_;
  ModelGeometry geometry_;
  std::unique_ptr<backend::Backend> backend_;  // outlives what lies on it: declared before
  std::vector<LayerWeights> layers_;
  OuterWeights outer_;
  std::unique_ptr<backend::Buffer> residual_;  // [max_batch_rows][hidden]
  std::unique_ptr<backend::Buffer> qkv_;       // [max_batch_rows][(heads + 2 kv_heads) * head_dim]
  std::unique_ptr<backend::Buffer> attended_;  // [max_batch_rows][heads * head_dim]
  std::unique_ptr<backend::Buffer> gate_up_;   // [max_batch_rows][2 * intermediate]
  std::unique_ptr<backend::Buffer> logits_;    // [max_logit_rows, or the most asked for so far][vocab]
};

}  // namespace swiftcache::engine::models
