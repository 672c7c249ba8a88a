// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/model_config.h"

#include <cmath>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {
namespace {

absl::Status CheckRange(const std::string& file, const char* what, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return Malformed(file, what, " is ", value, ", want 1 to ", max);
}

absl::Status CheckPositive(const std::string& file, const char* what, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return Malformed(file, what, " is ", value, ", want a positive, finite number");
}

absl::Status CheckSizes(const ModelConfig& c, const std::string& file) {
  RETURN_IF_ERROR(CheckRange(file, "the number of layers", c.num_layers, 10'000));
  RETURN_IF_ERROR(CheckRange(file, "the hidden size", c.hidden_size, 1 << 20));
  RETURN_IF_ERROR(CheckRange(file, "the intermediate size", c.intermediate_size, 1 << 24));
  RETURN_IF_ERROR(CheckRange(file, "the number of attention heads", c.num_heads, 1 << 16));
  RETURN_IF_ERROR(CheckRange(file, "the number of key-value heads", c.num_kv_heads, 1 << 16));
  RETURN_IF_ERROR(CheckRange(file, "the head size", c.head_dim, 1 << 14));
  RETURN_IF_ERROR(CheckRange(file, "the vocabulary size", c.vocab_size, 1 << 24));
  RETURN_IF_ERROR(CheckRange(file, "the context length", c.max_position, INT32_MAX));
  if (c.num_heads % c.num_kv_heads != 0) {
    return Malformed(file, c.num_heads, " attention heads and ", c.num_kv_heads,
                     " key-value heads, want the first a multiple of the second");
  }
  if (c.head_dim % 2 != 0) return Malformed(file, "the head size is ", c.head_dim, ", want an even number (rope)");
  return absl::OkStatus();
}

absl::Status CheckRope(const ModelConfig& c, const std::string& file) {
  const RopeScaling& r = c.rope_scaling;
  RETURN_IF_ERROR(CheckPositive(file, "rope theta", c.rope_theta));
  RETURN_IF_ERROR(CheckPositive(file, "the rope scaling factor", r.factor));
  if (r.kind == RopeScaling::Kind::kLlama3) {
    RETURN_IF_ERROR(CheckPositive(file, "rope's low_freq_factor", r.low_freq_factor));
    RETURN_IF_ERROR(CheckPositive(file, "rope's high_freq_factor", r.high_freq_factor));
    RETURN_IF_ERROR(CheckRange(file, "rope's original context length", r.original_max_position, INT32_MAX));
    if (r.low_freq_factor >= r.high_freq_factor) {
      return Malformed(file, "rope's low_freq_factor is ", r.low_freq_factor, ", want less than high_freq_factor ",
                       r.high_freq_factor);
    }
  }
  for (const float factor : c.rope_freq_factors) {
    RETURN_IF_ERROR(CheckPositive(file, "a factor of rope_freqs.weight", static_cast<double>(factor)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModelConfig(const ModelConfig& config, const std::string& file) {
  RETURN_IF_ERROR(CheckSizes(config, file));
  RETURN_IF_ERROR(CheckPositive(file, "the RMSNorm epsilon", config.rms_eps));
  RETURN_IF_ERROR(CheckRope(config, file));
  for (const int32_t id : config.eos_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return Malformed(file, "end-of-sequence id ", id, ", want 0 to ", config.vocab_size - 1, " (the vocabulary)");
    }
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::loader
