// SPDX-License-Identifier: Apache-2.0
// The frequencies of rotary position embeddings (RoPE).
//
//   std::vector<float> frequencies = InverseFrequencies(config);
#pragma once

#include <vector>

#include "engine/loader/model_config.h"

namespace swiftcache::engine::models {

/// [head_dim / 2], radians per position: theta^(-2i / head_dim), then scaled as the config says (Llama 3.1: frequencies
/// whose wave is longer than the original context are divided by `factor`, short ones are kept, those between blended).
/// A GGUF file's own factors divide them further.
std::vector<float> InverseFrequencies(const loader::ModelConfig& config);

}  // namespace swiftcache::engine::models
