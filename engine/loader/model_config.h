// SPDX-License-Identifier: Apache-2.0
// A model's hyper-parameters, whether they come from config.json or from GGUF metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace swiftcache::engine::loader {

enum class Architecture { kLlama, kQwen2, kQwen3 };

/// Scaling of rope's frequencies. kLlama3: the piecewise rule of Llama 3.1 (low/high frequency factors).
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 0;
};

/// Checked: every number is positive and finite, heads divide evenly, head_dim is even.
/// Thread-safety: a value.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position = 0;  // tokens
  double rms_eps = 0;
  double rope_theta = 0;
  RopeScaling rope_scaling;
  /// Empty, or head_dim / 2 positive factors: inverse frequency i, theta^(-2i / head_dim), is divided by factor i. This
  /// is how GGUF files carry Llama 3's scaling (tensor rope_freqs.weight); rope_scaling is then kNone or kLinear.
  std::vector<float> rope_freq_factors;
  bool tied_embeddings = false;
  bool qkv_bias = false;  // Qwen2
  bool qk_norm = false;   // Qwen3: RMSNorm over head_dim on q and k before rope
  std::vector<int32_t> eos_ids;
};

/// Whether the numbers fit each other and the limits of this version; `file` begins the message.
/// Errors: INVALID_ARGUMENT names the number, found and wanted.
absl::Status CheckModelConfig(const ModelConfig& config, const std::string& file);

}  // namespace swiftcache::engine::loader
