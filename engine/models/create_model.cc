// SPDX-License-Identifier: Apache-2.0
#include "engine/models/create_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/models/decoder.h"
#include "engine/models/rope.h"

namespace swiftcache::engine::models {
namespace {

absl::Status CheckKvLayers(const loader::ModelConfig& config, const backend::KvLayout& kv) {
  if (kv.num_layers == config.num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the KV layout has ", kv.num_layers, " layers, wanted the model's ", config.num_layers));
}

backend::Precision PrecisionOf(ComputeDtype dtype) {
  return dtype == ComputeDtype::kF32 ? backend::Precision::kF32 : backend::Precision::kBf16;
}

}  // namespace

int64_t PackedWeightBytes(const loader::Weights& weights, ComputeDtype dtype, const backend::Device& device) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : weights.tensors()) bytes += device.PackedBytes(tensor, PrecisionOf(dtype));
  return bytes;
}

int64_t ActivationBytes(const loader::ModelConfig& config, const ModelOptions& options) {
  const int64_t heads = 2 * (config.num_heads + config.num_kv_heads);  // of query, key, value and what was attended
  const int64_t row = config.hidden_size + heads * config.head_dim + 2 * config.intermediate_size;
  const int64_t logits = std::min(options.max_logit_rows, options.max_batch_rows) * config.vocab_size;
  return static_cast<int64_t>(sizeof(float)) * (options.max_batch_rows * row + logits);
}

absl::StatusOr<std::unique_ptr<Decoder>> CreateModel(const loader::ModelConfig& config, const loader::Weights& weights,
                                                     backend::Device& device, const ModelOptions& options) {
  RETURN_IF_ERROR(CheckKvLayers(config, options.kv));
  ASSIGN_OR_RETURN(auto backend,
                   device.CreateBackend({.precision = PrecisionOf(options.dtype),
                                         .attention = {config.num_heads, config.num_kv_heads, config.head_dim},
                                         .kv = options.kv,
                                         .inverse_frequencies = InverseFrequencies(config),
                                         .max_rows = options.max_batch_rows}));
  return Decoder::Create(config, weights, {options.max_batch_rows, options.max_logit_rows}, std::move(backend),
                         options.unwanted);
}

}  // namespace swiftcache::engine::models
