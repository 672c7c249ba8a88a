// SPDX-License-Identifier: Apache-2.0
#include "engine/models/rope.h"

#include <cmath>

namespace swiftcache::engine::models {
namespace {

double Llama3Scaled(double frequency, const loader::RopeScaling& scaling) {
  constexpr double kTwoPi = 6.283185307179586;
  const double wavelength = kTwoPi / frequency;
  const double original = static_cast<double>(scaling.original_max_position);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

double Scaled(double frequency, const loader::RopeScaling& scaling) {
  switch (scaling.kind) {
    case loader::RopeScaling::Kind::kNone:
      return frequency;
    case loader::RopeScaling::Kind::kLinear:
      return frequency / scaling.factor;
    case loader::RopeScaling::Kind::kLlama3:
      return Llama3Scaled(frequency, scaling);
  }
  return frequency;
}

}  // namespace

std::vector<float> InverseFrequencies(const loader::ModelConfig& config) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    // Rounded to f32 at the same places as the models' reference implementation, or long contexts drift apart.
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    const float frequency = 1.0f / static_cast<float>(std::pow(config.rope_theta, static_cast<double>(exponent)));
    const float factor = config.rope_freq_factors.empty() ? 1.0f : config.rope_freq_factors[i / 2];
    frequencies.push_back(static_cast<float>(Scaled(frequency, config.rope_scaling)) / factor);
  }
  return frequencies;
}

}  // namespace swiftcache::engine::models
