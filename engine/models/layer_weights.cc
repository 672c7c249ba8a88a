// SPDX-License-Identifier: Apache-2.0
#include "engine/models/layer_weights.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::engine::models {
namespace {

using backend::Exactness;

struct Wanted {
  std::string name;
  int64_t rows, cols;
};

absl::StatusOr<const backend::WeightSource*> FindShaped(const loader::Weights& weights, const Wanted& wanted) {
  ASSIGN_OR_RETURN(const backend::WeightSource* source, weights.Find(wanted.name));
  if (source->rows != wanted.rows || source->cols != wanted.cols) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", wanted.name, " is ", source->rows, " x ", source->cols,
                                                   ", wanted ", wanted.rows, " x ", wanted.cols,
                                                   " by the model's config"));
  }
  return source;
}

absl::StatusOr<std::vector<backend::WeightSource>> FindAll(const loader::Weights& weights,
                                                           const std::vector<Wanted>& all) {
  std::vector<backend::WeightSource> sources;
  for (const Wanted& wanted : all) {
    ASSIGN_OR_RETURN(const backend::WeightSource* source, FindShaped(weights, wanted));
    sources.push_back(*source);
  }
  return sources;
}

absl::StatusOr<std::unique_ptr<backend::Matrix>> LoadMatrix(const loader::Weights& weights,
                                                            const std::vector<Wanted>& stacked,
                                                            backend::Backend& backend,
                                                            Exactness exactness = Exactness::kUsual) {
  ASSIGN_OR_RETURN(const std::vector<backend::WeightSource> sources, FindAll(weights, stacked));
  return backend.PackMatrix(sources, exactness);
}

// Loads several vectors into one buffer, one after the other.
absl::StatusOr<std::unique_ptr<backend::Buffer>> LoadVector(const loader::Weights& weights,
                                                            const std::vector<Wanted>& parts,
                                                            backend::Backend& backend) {
  ASSIGN_OR_RETURN(const std::vector<backend::WeightSource> sources, FindAll(weights, parts));
  return backend.UploadVector(sources);
}

}  // namespace

absl::StatusOr<LayerWeights> LoadLayer(const loader::ModelConfig& config, const loader::Weights& weights, int64_t layer,
                                       backend::Backend& backend) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attn = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  LayerWeights w;
  ASSIGN_OR_RETURN(w.input_norm, LoadVector(weights, {{prefix + "input_layernorm.weight", 1, hidden}}, backend));
  ASSIGN_OR_RETURN(w.qkv, LoadMatrix(weights,
                                     {{attn + "q_proj.weight", q, hidden},
                                      {attn + "k_proj.weight", kv, hidden},
                                      {attn + "v_proj.weight", kv, hidden}},
                                     backend, Exactness::kHigh));
  if (config.qkv_bias) {
    ASSIGN_OR_RETURN(
        w.qkv_bias,
        LoadVector(weights,
                   {{attn + "q_proj.bias", 1, q}, {attn + "k_proj.bias", 1, kv}, {attn + "v_proj.bias", 1, kv}},
                   backend));
  }
  if (config.qk_norm) {
    ASSIGN_OR_RETURN(w.q_norm, LoadVector(weights, {{attn + "q_norm.weight", 1, config.head_dim}}, backend));
    ASSIGN_OR_RETURN(w.k_norm, LoadVector(weights, {{attn + "k_norm.weight", 1, config.head_dim}}, backend));
  }
  ASSIGN_OR_RETURN(w.o, LoadMatrix(weights, {{attn + "o_proj.weight", hidden, q}}, backend));
  ASSIGN_OR_RETURN(w.post_norm,
                   LoadVector(weights, {{prefix + "post_attention_layernorm.weight", 1, hidden}}, backend));
  ASSIGN_OR_RETURN(
      w.gate_up,
      LoadMatrix(weights, {{mlp + "gate_proj.weight", inner, hidden}, {mlp + "up_proj.weight", inner, hidden}},
                 backend));
  ASSIGN_OR_RETURN(w.down, LoadMatrix(weights, {{mlp + "down_proj.weight", hidden, inner}}, backend));
  return w;
}

absl::StatusOr<OuterWeights> LoadOuter(const loader::ModelConfig& config, const loader::Weights& weights,
                                       backend::Backend& backend) {
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  OuterWeights w;
  ASSIGN_OR_RETURN(w.embedding,
                   LoadMatrix(weights, {{"model.embed_tokens.weight", vocab, hidden}}, backend, Exactness::kHigh));
  ASSIGN_OR_RETURN(w.final_norm, LoadVector(weights, {{"model.norm.weight", 1, hidden}}, backend));
  if (!config.tied_embeddings) {
    ASSIGN_OR_RETURN(w.lm_head, LoadMatrix(weights, {{"lm_head.weight", vocab, hidden}}, backend, Exactness::kHigh));
  }
  return w;
}

}  // namespace swiftcache::engine::models
