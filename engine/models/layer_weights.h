// SPDX-License-Identifier: Apache-2.0
// A decoder's weights on a backend, loaded by Hugging Face's names. The model families differ only here: Qwen2 has
// biases on q, k and v, Qwen3 has norms on q and k, tied models have no lm_head.
//
//   ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(config, weights, l, backend));
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"

namespace swiftcache::engine::models {

/// Thread-safety: immutable once loaded. Ownership: owns its matrices; must not outlive the backend.
struct LayerWeights {
  std::unique_ptr<backend::Buffer> input_norm;      // [hidden]
  std::unique_ptr<backend::Matrix> qkv;             // q, k, v stacked
  std::unique_ptr<backend::Buffer> qkv_bias;        // null except in Qwen2
  std::unique_ptr<backend::Buffer> q_norm, k_norm;  // [head_dim], null except in Qwen3
  std::unique_ptr<backend::Matrix> o;
  std::unique_ptr<backend::Buffer> post_norm;  // [hidden], before the MLP
  std::unique_ptr<backend::Matrix> gate_up;    // gate, up stacked
  std::unique_ptr<backend::Matrix> down;
};

/// The weights before and after the layers.
struct OuterWeights {
  std::unique_ptr<backend::Matrix> embedding;
  std::unique_ptr<backend::Buffer> final_norm;
  std::unique_ptr<backend::Matrix> lm_head;  // null in tied models, which use the embedding
};

/// Errors: NOT_FOUND (names the tensor), INVALID_ARGUMENT (shape found and wanted), RESOURCE_EXHAUSTED (bytes).
absl::StatusOr<LayerWeights> LoadLayer(const loader::ModelConfig& config, const loader::Weights& weights, int64_t layer,
                                       backend::Backend& backend);
absl::StatusOr<OuterWeights> LoadOuter(const loader::ModelConfig& config, const loader::Weights& weights,
                                       backend::Backend& backend);

}  // namespace swiftcache::engine::models
