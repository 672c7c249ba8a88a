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

/// Calls add(name, rows, cols) for every tensor of a model of that shape, vectors as one row.
template <typename Add>
void ForEachTensor(const engine::loader::ModelConfig& c, Add add) {
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  add("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  if (!c.tied_embeddings) add("lm_head.weight", c.vocab_size, c.hidden_size);
  add("model.norm.weight", 1, c.hidden_size);
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    add(layer + "input_layernorm.weight", 1, c.hidden_size);
    add(layer + "post_attention_layernorm.weight", 1, c.hidden_size);
    const auto project_input = [&](const std::string& name, int64_t rows) {
      add(layer + "self_attn." + name + ".weight", rows, c.hidden_size);
      if (c.qkv_bias) add(layer + "self_attn." + name + ".bias", 1, rows);
    };
    project_input("q_proj", q);
    project_input("k_proj", kv);
    project_input("v_proj", kv);
    add(layer + "self_attn.o_proj.weight", c.hidden_size, q);
    if (c.qk_norm) {
      add(layer + "self_attn.q_norm.weight", 1, c.head_dim);
      add(layer + "self_attn.k_norm.weight", 1, c.head_dim);
    }
    add(layer + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size);
    add(layer + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size);
    add(layer + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size);
  }
}

/// Thread-safety: immutable. Ownership: owns the numbers (f32). Errors: none.
class SyntheticWeights final : public engine::loader::Weights {
 public:
  explicit SyntheticWeights(const engine::loader::ModelConfig& config, uint32_t seed = 1) : random_(seed) {
    ForEachTensor(config, [this](const std::string& name, int64_t rows, int64_t cols) {
      const bool projects = name.ends_with("_proj.weight");
      Add(name, rows, cols, projects ? 1.0f / std::sqrt(static_cast<float>(cols)) : 1.0f);
    });
  }

 private:
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
