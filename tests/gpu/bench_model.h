// SPDX-License-Identifier: Apache-2.0
// The model that swiftcache-gpu-bench measures with: a shape, and weights that take little memory of the host.
//
//   const SharedWeights weights(Qwen3Config(), engine::backend::WeightFormat::kBf16);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/bf16.h"
#include "engine/backend/weight_source.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"
#include "tests/fakes/synthetic_weights.h"

namespace swiftcache::gpu_bench {

/// Qwen3-8B's shape: 36 layers, 8.2 billion parameters.
inline engine::loader::ModelConfig Qwen3Config() {
  engine::loader::ModelConfig config;
  config.architecture = engine::loader::Architecture::kQwen3;
  config.num_layers = 36;
  config.hidden_size = 4096;
  config.intermediate_size = 12288;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 151936;
  config.max_position = 40960;
  config.rms_eps = 1e-6;
  config.rope_theta = 1e6;
  config.qk_norm = true;
  return config;
}

/// Every matrix is the beginning of one run of small random numbers, bf16 or blocks of Q4_0; vectors are bf16 always.
class SharedWeights final : public engine::loader::Weights {
 public:
  SharedWeights(const engine::loader::ModelConfig& c, engine::backend::WeightFormat format)
      : numbers_(c.vocab_size * c.hidden_size) {
    uint64_t state = 1;
    const auto random = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 40; };
    for (uint16_t& number : numbers_) {
      number = engine::backend::ToBf16((static_cast<float>(random()) * 0x1p-24f - 0.5f) * 0.05f);
    }
    if (format == engine::backend::WeightFormat::kQ4_0) {
      for (size_t i = 0; i < numbers_.size() / 9 * 9; ++i) {  // of a block: the scale, 1 / 256, and 32 codes
        blocks_.push_back(static_cast<uint16_t>(i % 9 == 0 ? 0x1C00 : random()));
      }
    }
    ForEachTensor(c, [&](const std::string& name, int64_t rows, int64_t cols) {
      Add(name, rows, cols, rows == 1 ? engine::backend::WeightFormat::kBf16 : format);
    });
  }

 private:
  void Add(const std::string& name, int64_t rows, int64_t cols, engine::backend::WeightFormat format) {
    const std::vector<uint16_t>& from = format == engine::backend::WeightFormat::kBf16 ? numbers_ : blocks_;
    tensors_[name] = {.format = format,
                      .data = reinterpret_cast<const std::byte*>(from.data()),
                      .rows = rows,
                      .cols = cols,
                      .row_bytes = RowBytes(format, cols)};
  }
  std::vector<uint16_t> numbers_, blocks_;
};

}  // namespace swiftcache::gpu_bench
