// SPDX-License-Identifier: Apache-2.0
// The tensors that an architecture needs: their names in Hugging Face and GGUF files, and their shapes.
//
//   for (int64_t layer = 0; layer < config.num_layers; ++layer)
//     for (const WantedTensor& wanted : LayerTensors(config, layer)) names.push_back(wanted.hf_name);
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/loader/model_config.h"

namespace swiftcache::engine::loader {

/// Shape [rows][cols]; a vector has is_vector set and rows = 1.
struct WantedTensor {
  std::string hf_name;    // "model.layers.3.self_attn.q_proj.weight"
  std::string gguf_name;  // "blk.3.attn_q.weight"
  int64_t rows = 0;
  int64_t cols = 0;
  bool is_vector = false;
  bool rotary = false;  // q and k, whose rows GGUF's llama files store as pairs
};

/// Embedding, last norm, output.
std::vector<WantedTensor> GlobalTensors(const ModelConfig& config);
std::vector<WantedTensor> LayerTensors(const ModelConfig& config, int64_t layer);

/// Calls `take` for every tensor of the model until one fails.
absl::Status ForEachWanted(const ModelConfig& config, const std::function<absl::Status(const WantedTensor&)>& take);

}  // namespace swiftcache::engine::loader
