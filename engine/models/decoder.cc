// SPDX-License-Identifier: Apache-2.0
#include "engine/models/decoder.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::engine::models {

using backend::Prologue;

Decoder::Decoder(const loader::ModelConfig& config, const Rows& rows, std::unique_ptr<backend::Backend> backend)
    : config_(config),
      max_(rows),
      geometry_{config.num_layers, config.num_kv_heads, config.head_dim, config.vocab_size, config.max_position},
      backend_(std::move(backend)) {}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const loader::ModelConfig& config,
                                                         const loader::Weights& weights, const Rows& rows,
                                                         std::unique_ptr<backend::Backend> backend,
                                                         const std::function<bool()>& unwanted) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(config, rows, std::move(backend)));
  RETURN_IF_ERROR(decoder->Load(weights, unwanted));
  RETURN_IF_ERROR(decoder->AllocateActivations());
  return decoder;
}

absl::Status Decoder::Load(const loader::Weights& weights, const std::function<bool()>& unwanted) {
  ASSIGN_OR_RETURN(outer_, LoadOuter(config_, weights, *backend_));
  for (int64_t l = 0; l < config_.num_layers; ++l) {
    if (unwanted && unwanted()) return absl::CancelledError("the model is not wanted any more");
    ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(config_, weights, l, *backend_));
    layers_.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

absl::Status Decoder::AllocateActivations() {
  const int64_t rows = max_.max_batch_rows;
  ASSIGN_OR_RETURN(residual_, backend_->Allocate(rows, config_.hidden_size));
  ASSIGN_OR_RETURN(qkv_, backend_->Allocate(rows, (config_.num_heads + 2 * config_.num_kv_heads) * config_.head_dim));
  ASSIGN_OR_RETURN(attended_, backend_->Allocate(rows, config_.num_heads * config_.head_dim));
  ASSIGN_OR_RETURN(gate_up_, backend_->Allocate(rows, 2 * config_.intermediate_size));
  return EnsureLogits(std::max<int64_t>(1, std::min(max_.max_logit_rows, rows)));
}

// A row of logits is large, so there is no room for every row of a batch: the buffer grows to what was asked for.
absl::Status Decoder::EnsureLogits(int64_t rows) {
  if (logits_ != nullptr && logits_->rows() >= rows) return absl::OkStatus();
  ASSIGN_OR_RETURN(logits_, backend_->Allocate(rows, config_.vocab_size));
  return absl::OkStatus();
}

absl::Status Decoder::Begin(const ForwardBatch& batch) {
  sequences_.clear();
  num_rows_ = 0;
  for (const SequenceRows& s : batch.sequences) {
    CHECK_GE(s.num_rows, 0);
    CHECK_GE(s.context_tokens, 0);
    sequences_.push_back({s.num_rows, s.context_tokens, s.blocks});
    num_rows_ += s.num_rows;
  }
  CHECK_EQ(num_rows_, static_cast<int64_t>(batch.token_ids.size()));
  CHECK_LE(num_rows_, max_.max_batch_rows);
  for (const int32_t id : batch.token_ids) CHECK(id >= 0 && id < config_.vocab_size) << "token id " << id;
  logit_rows_.assign(batch.logit_rows.begin(), batch.logit_rows.end());
  for (const int32_t row : logit_rows_) CHECK(row >= 0 && row < num_rows_) << "logit row " << row;
  RETURN_IF_ERROR(backend_->BeginStep(sequences_));
  RETURN_IF_ERROR(backend_->Embed(*outer_.embedding, batch.token_ids, *residual_));
  next_layer_ = 0;
  return absl::OkStatus();
}

absl::Status Decoder::RunLayer(int64_t layer) {
  CHECK_EQ(layer, next_layer_) << "layers run in ascending order, after Begin";
  CHECK_LT(layer, config_.num_layers);
  const LayerWeights& w = layers_[layer];
  const float eps = static_cast<float>(config_.rms_eps);
  const int64_t rows = num_rows_;
  RETURN_IF_ERROR(backend_->Linear({.in = residual_.get(),
                                    .rows = rows,
                                    .prologue = Prologue::kRmsNorm,
                                    .norm = w.input_norm.get(),
                                    .eps = eps,
                                    .weight = w.qkv.get(),
                                    .bias = w.qkv_bias.get(),
                                    .out = qkv_.get()}));
  RETURN_IF_ERROR(backend_->RopeAndStoreKv(
      {.layer = layer, .qkv = qkv_.get(), .q_norm = w.q_norm.get(), .k_norm = w.k_norm.get(), .eps = eps}));
  RETURN_IF_ERROR(backend_->Attention(layer, *qkv_, *attended_));
  RETURN_IF_ERROR(backend_->Linear(
      {.in = attended_.get(), .rows = rows, .weight = w.o.get(), .add = true, .out = residual_.get()}));
  RETURN_IF_ERROR(backend_->Linear({.in = residual_.get(),
                                    .rows = rows,
                                    .prologue = Prologue::kRmsNorm,
                                    .norm = w.post_norm.get(),
                                    .eps = eps,
                                    .weight = w.gate_up.get(),
                                    .out = gate_up_.get()}));
  RETURN_IF_ERROR(backend_->Linear({.in = gate_up_.get(),
                                    .rows = rows,
                                    .prologue = Prologue::kSiluMul,
                                    .weight = w.down.get(),
                                    .add = true,
                                    .out = residual_.get()}));
  ++next_layer_;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Decoder::Finish() {
  CHECK_EQ(next_layer_, config_.num_layers) << "every layer runs before Finish";
  next_layer_ = -1;
  const int64_t rows = logit_rows_.size();
  if (rows == 0) return std::span<const float>();
  RETURN_IF_ERROR(EnsureLogits(rows));
  RETURN_IF_ERROR(backend_->Linear({.in = residual_.get(),
                                    .rows = rows,
                                    .in_rows = logit_rows_,
                                    .prologue = Prologue::kRmsNorm,
                                    .norm = outer_.final_norm.get(),
                                    .eps = static_cast<float>(config_.rms_eps),
                                    .weight = &head(),
                                    .out = logits_.get()}));
  return backend_->Download(*logits_, rows);
}

absl::StatusOr<std::vector<float>> Decoder::ResidualRow(int64_t row) {
  CHECK(row >= 0 && row < num_rows_);
  next_layer_ = -1;
  ASSIGN_OR_RETURN(std::span<const float> all, backend_->Download(*residual_, row + 1));
  return std::vector<float>(all.end() - config_.hidden_size, all.end());
}

int64_t Decoder::weight_bytes() const {
  int64_t bytes = head().bytes();
  for (const LayerWeights& w : layers_) {
    bytes += w.qkv->bytes() + w.o->bytes() + w.gate_up->bytes() + w.down->bytes();
  }
  return bytes;
}

}  // namespace swiftcache::engine::models
