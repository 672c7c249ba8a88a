// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/weight_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::engine::loader {
namespace {

// The tensors of one layer, with its two prefixes put before every name.
class LayerPlan {
 public:
  explicit LayerPlan(int64_t layer)
      : hf_(absl::StrCat("model.layers.", layer, ".")), gguf_(absl::StrCat("blk.", layer, ".")) {}

  void Matrix(const char* hf, const char* gguf, int64_t rows, int64_t cols, bool rotary = false) {
    tensors_.push_back(
        {absl::StrCat(hf_, hf, ".weight"), absl::StrCat(gguf_, gguf, ".weight"), rows, cols, false, rotary});
  }
  void Vector(const char* hf, const char* gguf, int64_t cols) {
    tensors_.push_back({absl::StrCat(hf_, hf), absl::StrCat(gguf_, gguf), 1, cols, true, false});
  }
  std::vector<WantedTensor> Take() && { return std::move(tensors_); }

 private:
  const std::string hf_, gguf_;
  std::vector<WantedTensor> tensors_;
};

void AddAttention(const ModelConfig& c, LayerPlan& plan) {
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  plan.Vector("input_layernorm.weight", "attn_norm.weight", c.hidden_size);
  plan.Matrix("self_attn.q_proj", "attn_q", q, c.hidden_size, true);
  plan.Matrix("self_attn.k_proj", "attn_k", kv, c.hidden_size, true);
  plan.Matrix("self_attn.v_proj", "attn_v", kv, c.hidden_size);
  plan.Matrix("self_attn.o_proj", "attn_output", c.hidden_size, q);
  if (c.qkv_bias) {
    plan.Vector("self_attn.q_proj.bias", "attn_q.bias", q);
    plan.Vector("self_attn.k_proj.bias", "attn_k.bias", kv);
    plan.Vector("self_attn.v_proj.bias", "attn_v.bias", kv);
  }
  if (c.qk_norm) {
    plan.Vector("self_attn.q_norm.weight", "attn_q_norm.weight", c.head_dim);
    plan.Vector("self_attn.k_norm.weight", "attn_k_norm.weight", c.head_dim);
  }
}

}  // namespace

std::vector<WantedTensor> GlobalTensors(const ModelConfig& config) {
  std::vector<WantedTensor> tensors = {
      {"model.embed_tokens.weight", "token_embd.weight", config.vocab_size, config.hidden_size, false, false},
      {"model.norm.weight", "output_norm.weight", 1, config.hidden_size, true, false}};
  if (!config.tied_embeddings) {
    tensors.push_back({"lm_head.weight", "output.weight", config.vocab_size, config.hidden_size, false, false});
  }
  return tensors;
}

std::vector<WantedTensor> LayerTensors(const ModelConfig& config, int64_t layer) {
  LayerPlan plan(layer);
  AddAttention(config, plan);
  plan.Vector("post_attention_layernorm.weight", "ffn_norm.weight", config.hidden_size);
  plan.Matrix("mlp.gate_proj", "ffn_gate", config.intermediate_size, config.hidden_size);
  plan.Matrix("mlp.up_proj", "ffn_up", config.intermediate_size, config.hidden_size);
  plan.Matrix("mlp.down_proj", "ffn_down", config.hidden_size, config.intermediate_size);
  return std::move(plan).Take();
}

absl::Status ForEachWanted(const ModelConfig& config, const std::function<absl::Status(const WantedTensor&)>& take) {
  for (const WantedTensor& wanted : GlobalTensors(config)) RETURN_IF_ERROR(take(wanted));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const WantedTensor& wanted : LayerTensors(config, layer)) RETURN_IF_ERROR(take(wanted));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::loader
