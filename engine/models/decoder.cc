// SPDX-License-Identifier: Apache-2.0
#include "engine/models/decoder.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::engine::models {

using backend::Prologue;

namespace {

constexpr int64_t kPiecesOfLayer = 3;  // attention, gates and ups, downs

}  // namespace

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
  ASSIGN_OR_RETURN(attended_, backend_->AllocateRounded(rows, config_.num_heads * config_.head_dim));
  ASSIGN_OR_RETURN(gate_up_, backend_->AllocateRounded(rows, 2 * config_.intermediate_size));
  const int64_t logit_rows = std::max<int64_t>(1, std::min(max_.max_logit_rows, rows));
  RETURN_IF_ERROR(backend_->ReserveSampling(logit_rows, config_.vocab_size));
  return EnsureLogits(logit_rows);
}

// A row of logits is large, so there is no room for every row of a batch: the buffer grows to what was asked for. The
// step before may still be reading it.
absl::Status Decoder::EnsureLogits(int64_t rows) {
  if (logits_ != nullptr && logits_->rows() >= rows) return absl::OkStatus();
  backend_->Submitted().Wait();
  ASSIGN_OR_RETURN(logits_, backend_->Allocate(rows, config_.vocab_size));
  return absl::OkStatus();
}

void Decoder::Check(const ForwardBatch& batch) const {
  int64_t rows = 0;
  for (const backend::StepSequence& s : batch.sequences) {
    CHECK_GE(s.num_rows, 0);
    CHECK_GE(s.context_tokens, 0);
    rows += s.num_rows;
  }
  CHECK_EQ(rows, static_cast<int64_t>(batch.token_ids.size()));
  CHECK_LE(rows, max_.max_batch_rows);
  for (const int32_t id : batch.token_ids) CHECK_LT(id, config_.vocab_size) << "token id";
  for (const int32_t row : batch.logit_rows) CHECK(row >= 0 && row < rows) << "logit row " << row;
  const auto not_ascending = std::ranges::adjacent_find(batch.logit_rows, std::greater_equal<>());
  CHECK(not_ascending == batch.logit_rows.end()) << "logit row " << *not_ascending << " comes before its next";
  for (const backend::SampleRow& sample : batch.samples) {
    CHECK(sample.logits_row >= 0 && sample.logits_row < static_cast<int64_t>(batch.logit_rows.size()));
  }
}

backend::Fence Decoder::Run(const ForwardBatch& batch, backend::LayerGate* gate, ForwardResult& result) {
  Check(batch);
  result = {};
  result.status = Submit(batch, gate, result);
  return backend_->EndStep(result.status);
}

absl::Status Decoder::Submit(const ForwardBatch& batch, backend::LayerGate* gate, ForwardResult& result) {
  RETURN_IF_ERROR(backend_->BeginStep(batch.sequences, batch.streamed));
  if (batch.first_piece == 0) RETURN_IF_ERROR(backend_->Embed(*outer_.embedding, batch.token_ids, *residual_));
  result.pieces = batch.first_piece;
  while (result.pieces < kPiecesOfLayer * config_.num_layers && !result.cut_short) {
    RETURN_IF_ERROR(RunPiece(batch, result.pieces++, gate, result));
  }
  RETURN_IF_ERROR(backend_->CheckWords(batch.checks, result.changed));
  return result.cut_short ? absl::OkStatus() : ChooseTokens(batch, result);
}

// Behind each a step may be cut short, and go on: what the next one needs is in the buffers of activations.
// Once the last layer has its K and V, no row is of use whose logits nobody wants: of a prompt all but its last.
absl::Status Decoder::RunPiece(const ForwardBatch& batch, int64_t piece, backend::LayerGate* gate,
                               ForwardResult& result) {
  const int64_t layer = piece / kPiecesOfLayer, of_layer = piece % kPiecesOfLayer;
  if (of_layer == 0) return Attend(batch, layer, gate, result);
  const bool is_last = layer + 1 == config_.num_layers;
  if (is_last && of_layer == 1) RETURN_IF_ERROR(KeepWanted(batch));
  const auto rows = static_cast<int64_t>(is_last ? batch.logit_rows.size() : batch.token_ids.size());
  RETURN_IF_ERROR(of_layer == 1 ? GateAndUp(layers_[layer], rows) : Down(layers_[layer], rows));
  result.cut_short = gate != nullptr && !gate->Wanted();
  return absl::OkStatus();
}

absl::Status Decoder::Attend(const ForwardBatch& batch, int64_t layer, backend::LayerGate* gate,
                             ForwardResult& result) {
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  const LayerWeights& w = layers_[layer];
  const float eps = static_cast<float>(config_.rms_eps);
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
  if (gate != nullptr) backend_->WaitFor(gate->Arrived(layer));
  const bool attends = layer + 1 < config_.num_layers || !batch.logit_rows.empty();
  if (attends) RETURN_IF_ERROR(backend_->Attention(layer, *qkv_, *attended_));
  result.cut_short = gate != nullptr && !gate->Read(layer, backend_->Submitted());
  return absl::OkStatus();
}

absl::Status Decoder::KeepWanted(const ForwardBatch& batch) {
  if (batch.logit_rows.size() == batch.token_ids.size()) return absl::OkStatus();
  const std::array<backend::Buffer*, 2> read_later = {residual_.get(), attended_.get()};
  return backend_->KeepRows(batch.logit_rows, read_later);
}

absl::Status Decoder::GateAndUp(const LayerWeights& w, int64_t rows) {
  RETURN_IF_ERROR(backend_->Linear(
      {.in = attended_.get(), .rows = rows, .weight = w.o.get(), .add = true, .out = residual_.get()}));
  return backend_->Linear({.in = residual_.get(),
                           .rows = rows,
                           .prologue = Prologue::kRmsNorm,
                           .norm = w.post_norm.get(),
                           .eps = static_cast<float>(config_.rms_eps),
                           .weight = w.gate_up.get(),
                           .out = gate_up_.get()});
}

absl::Status Decoder::Down(const LayerWeights& w, int64_t rows) {
  return backend_->Linear({.in = gate_up_.get(),
                           .rows = rows,
                           .prologue = Prologue::kSiluMul,
                           .weight = w.down.get(),
                           .add = true,
                           .out = residual_.get()});
}

absl::Status Decoder::ChooseTokens(const ForwardBatch& batch, ForwardResult& result) {
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  if (rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(EnsureLogits(rows));
  RETURN_IF_ERROR(backend_->Linear({.in = residual_.get(),
                                    .rows = rows,
                                    .prologue = Prologue::kRmsNorm,
                                    .norm = outer_.final_norm.get(),
                                    .eps = static_cast<float>(config_.rms_eps),
                                    .weight = &head(),
                                    .out = logits_.get()}));
  if (batch.samples.empty()) return absl::OkStatus();
  result.tokens.resize(batch.samples.size());
  return backend_->Sample(*logits_, batch.samples, std::span(result.tokens));
}

absl::StatusOr<std::vector<float>> Decoder::ResidualRow(int64_t row) {
  CHECK(row >= 0 && row < max_.max_batch_rows);
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
