// SPDX-License-Identifier: Apache-2.0
// The shape of a decoder that has everything and computes in no time.
//
//   const loader::ModelConfig config = TinyConfig();
//   const SyntheticWeights weights(config);
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "engine/loader/model_config.h"

namespace swiftcache::engine::models {

inline loader::ModelConfig TinyConfig() {
  loader::ModelConfig config;
  config.architecture = loader::Architecture::kQwen3;
  config.num_layers = 3;
  config.hidden_size = 72;
  config.intermediate_size = 100;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 20;
  config.vocab_size = 131;
  config.max_position = 2048;
  config.rms_eps = 1e-6;
  config.rope_theta = 10000;
  config.qkv_bias = true;
  config.qk_norm = true;
  return config;
}

/// Tokens of it.
inline std::vector<int32_t> RandomIds(int64_t n, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random() % 131));
  return ids;
}

}  // namespace swiftcache::engine::models
