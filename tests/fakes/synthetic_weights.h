// SPDX-License-Identifier: Apache-2.0
// Random weights of any shape, in memory, for tests and benchmarks that want a model without a file.
//
//   SyntheticWeights weights(SmolLm2Config());
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"

namespace swiftcache {

/// The shape of SmolLM2-135M.
inline engine::loader::ModelConfig SmolLm2Config() {
  engine::loader::ModelConfig config;
  config.num_layers = 30;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.vocab_size = 49152;
  config.max_position = 8192;
  config.rms_eps = 1e-5;
  config.rope_theta = 100000;
  config.tied_embeddings = true;
  return config;
}

/// Thread-safety: immutable. Ownership: owns the numbers (f32). Errors: none.
class SyntheticWeights final : public engine::loader::Weights {
 public:
  explicit SyntheticWeights(const engine::loader::ModelConfig& c, uint32_t seed = 1) : random_(seed) {
    const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
    Add("model.embed_tokens.weight", c.vocab_size, c.hidden_size, 1.0f);
    if (!c.tied_embeddings) Add("lm_head.weight", c.vocab_size, c.hidden_size, 1.0f);
    Add("model.norm.weight", 1, c.hidden_size, 1.0f);
    for (int64_t l = 0; l < c.num_layers; ++l) {
      const std::string prefix = "model.layers." + std::to_string(l) + ".";
      Add(prefix + "input_layernorm.weight", 1, c.hidden_size, 1.0f);
      Add(prefix + "post_attention_layernorm.weight", 1, c.hidden_size, 1.0f);
      const std::string attn = prefix + "self_attn.", mlp = prefix + "mlp.";
      AddProjection(attn + "q_proj", q, c.hidden_size, c.qkv_bias);
      AddProjection(attn + "k_proj", kv, c.hidden_size, c.qkv_bias);
      AddProjection(attn + "v_proj", kv, c.hidden_size, c.qkv_bias);
      AddProjection(attn + "o_proj", c.hidden_size, q, false);
      if (c.qk_norm) {
        Add(attn + "q_norm.weight", 1, c.head_dim, 1.0f);
        Add(attn + "k_norm.weight", 1, c.head_dim, 1.0f);
      }
      AddProjection(mlp + "gate_proj", c.intermediate_size, c.hidden_size, false);
      AddProjection(mlp + "up_proj", c.intermediate_size, c.hidden_size, false);
      AddProjection(mlp + "down_proj", c.hidden_size, c.intermediate_size, false);
    }
  }

 private:
  void AddProjection(const std::string& name, int64_t rows, int64_t cols, bool bias) {
    Add(name + ".weight", rows, cols, 1.0f / std::sqrt(static_cast<float>(cols)));
    if (bias) Add(name + ".bias", 1, rows, 1.0f);
  }

  void Add(const std::string& name, int64_t rows, int64_t cols, float scale) {
    std::uniform_real_distribution<float> uniform(-1.7f * scale, 1.7f * scale);
    auto values = std::make_unique<std::vector<float>>(rows * cols);
    for (float& value : *values) value = uniform(random_);
    using engine::backend::WeightFormat;
    tensors_[name] = {.format = WeightFormat::kF32,
                      .data = reinterpret_cast<const std::byte*>(values->data()),
                      .rows = rows,
                      .cols = cols,
                      .row_bytes = RowBytes(WeightFormat::kF32, cols)};
    values_.push_back(std::move(values));
  }

  std::minstd_rand random_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
};

}  // namespace swiftcache
