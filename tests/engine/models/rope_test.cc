// SPDX-License-Identifier: Apache-2.0
#include "engine/models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace swiftcache::engine::models {
namespace {

loader::ModelConfig Config() {
  loader::ModelConfig config;
  config.head_dim = 64;
  config.rope_theta = 500000;
  return config;
}

TEST(RopeTest, FrequenciesFallGeometricallyFromOne) {
  const std::vector<float> found = InverseFrequencies(Config());
  ASSERT_EQ(found.size(), 32u);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(found[i] * std::pow(500000.0, i / 32.0), 1.0, 1e-5);
}

TEST(RopeTest, LinearScalingDividesEveryFrequency) {
  loader::ModelConfig config = Config();
  config.rope_scaling = {.kind = loader::RopeScaling::Kind::kLinear, .factor = 4};
  const std::vector<float> plain = InverseFrequencies(Config()), found = InverseFrequencies(config);
  for (int i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(found[i], plain[i] / 4);
}

TEST(RopeTest, AFilesOwnFactorsDivideEachFrequency) {
  loader::ModelConfig config = Config();
  for (int i = 0; i < 32; ++i) config.rope_freq_factors.push_back(1.0f + i);
  const std::vector<float> plain = InverseFrequencies(Config()), found = InverseFrequencies(config);
  for (int i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(found[i], plain[i] / (1.0f + i));
}

TEST(RopeTest, Llama3ScalingKeepsShortWavesAndStretchesLongOnes) {
  loader::ModelConfig config = Config();
  config.rope_scaling = {loader::RopeScaling::Kind::kLlama3, 8, 1, 4, 8192};
  const std::vector<float> plain = InverseFrequencies(Config()), found = InverseFrequencies(config);
  int kept = 0, divided = 0, blended = 0;
  for (int i = 0; i < 32; ++i) {
    const double wave = 2 * M_PI / plain[i];
    if (wave < 8192.0 / 4) {
      EXPECT_FLOAT_EQ(found[i], plain[i]);
      ++kept;
    } else if (wave > 8192.0) {
      EXPECT_FLOAT_EQ(found[i], plain[i] / 8);
      ++divided;
    } else {
      EXPECT_GT(found[i], plain[i] / 8);
      EXPECT_LT(found[i], plain[i]);
      ++blended;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

}  // namespace
}  // namespace swiftcache::engine::models
