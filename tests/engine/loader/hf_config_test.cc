// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json Base() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"vocab_size", 100},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-6},
          {"eos_token_id", 7}};
}

ModelConfig Parse(const json& config) {
  const absl::StatusOr<ModelConfig> parsed = ParseHfConfig(config.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(ModelConfig());
}

void ExpectError(const json& config, absl::StatusCode code, const std::string& words) {
  const absl::Status status = ParseHfConfig(config.dump(), "config.json").status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("config.json"), HasSubstr(words)));
}

TEST(HfConfigTest, WhatIsLeftOutHasTransformersDefaults) {
  const ModelConfig config = Parse(Base());
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_THAT(config.eos_ids, ElementsAre(7));
}

TEST(HfConfigTest, BothFormsOfRopeAreTheSame) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  json four = Base(), five = Base();
  four["rope_theta"] = 500000.0;
  four["rope_scaling"] = scaling;
  five["rope_parameters"] = scaling;
  five["rope_parameters"]["rope_theta"] = 500000.0;
  for (const ModelConfig& config : {Parse(four), Parse(five)}) {
    EXPECT_EQ(config.rope_theta, 500000.0);
    EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
    EXPECT_EQ(config.rope_scaling.factor, 8.0);
    EXPECT_EQ(config.rope_scaling.high_freq_factor, 4.0);
    EXPECT_EQ(config.rope_scaling.original_max_position, 64);
  }
}

TEST(HfConfigTest, LinearScalingIsReadUnderItsOldKey) {
  json config = Base();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(Parse(config).rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(Parse(config).rope_scaling.factor, 2.0);
}

TEST(HfConfigTest, ScalingThatMakesNoSenseIsRefused) {
  json config = Base();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 0.0}};
  ExpectError(config, absl::StatusCode::kInvalidArgument, "rope scaling factor is 0");
  config["rope_scaling"] = {{"rope_type", "linear"}};
  ExpectError(config, absl::StatusCode::kInvalidArgument, "rope_scaling.factor is missing");
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}};
  ExpectError(config, absl::StatusCode::kUnimplemented, "found \"yarn\"");
}

TEST(HfConfigTest, QwenArchitecturesBringTheirParts) {
  json config = Base();
  config["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(Parse(config).qkv_bias);
  config["architectures"] = {"Qwen3ForCausalLM"};
  EXPECT_TRUE(Parse(config).qk_norm);
  EXPECT_EQ(Parse(config).head_dim, 128) << "Qwen3's default does not follow from the hidden size";
  config["head_dim"] = 32;
  EXPECT_EQ(Parse(config).head_dim, 32);
}

TEST(HfConfigTest, ModelTypeStandsInForTheClass) {
  json config = Base();
  config.erase("architectures");
  config["model_type"] = "qwen2";
  EXPECT_EQ(Parse(config).architecture, Architecture::kQwen2);
  config.erase("model_type");
  ExpectError(config, absl::StatusCode::kInvalidArgument, "are missing");
}

TEST(HfConfigTest, SlidingWindowsInUseAreRefused) {
  json mistral = Base();
  mistral["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(Parse(mistral).architecture, Architecture::kLlama);
  mistral["sliding_window"] = 256;
  ExpectError(mistral, absl::StatusCode::kUnimplemented, "sliding_window: found 256");
  json qwen = Base();
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  qwen["sliding_window"] = 256;
  qwen["use_sliding_window"] = false;
  EXPECT_EQ(Parse(qwen).architecture, Architecture::kQwen2);
  qwen["use_sliding_window"] = true;
  ExpectError(qwen, absl::StatusCode::kUnimplemented, "sliding_window: found 256");
}

TEST(HfConfigTest, AWindowThatIsLeftOutIsTransformersDefault) {
  json mistral = Base();
  mistral["architectures"] = {"MistralForCausalLM"};
  mistral["max_position_embeddings"] = 8192;
  ExpectError(mistral, absl::StatusCode::kUnimplemented, "sliding_window: found 4096");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(Parse(mistral).max_position, 8192);
  json qwen = Base();
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  qwen["max_position_embeddings"] = 8192;
  EXPECT_EQ(Parse(qwen).max_position, 8192);
  qwen["use_sliding_window"] = true;
  ExpectError(qwen, absl::StatusCode::kUnimplemented, "sliding_window: found 4096");
}

TEST(HfConfigTest, BiasesOfLlamaAreRefused) {
  json config = Base();
  config["attention_bias"] = true;
  ExpectError(config, absl::StatusCode::kUnimplemented, "attention_bias");
}

TEST(HfConfigTest, EndOfSequenceIdsOfBothFilesCountOnce) {
  json config = Base();
  config["eos_token_id"] = {7, 8};
  ModelConfig parsed = Parse(config);
  ASSERT_TRUE(AddGenerationConfig(R"({"eos_token_id": [8, 9]})", "generation_config.json", parsed).ok());
  EXPECT_THAT(parsed.eos_ids, ElementsAre(7, 8, 9));
  EXPECT_EQ(AddGenerationConfig(R"({"eos_token_id": 100})", "generation_config.json", parsed).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::engine::loader
