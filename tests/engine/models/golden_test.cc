// SPDX-License-Identifier: Apache-2.0
// Every small model that the project carries, in every precision and ISA of this machine.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/loader/checkpoint.h"
#include "tests/engine/models/golden_cases.h"

namespace swiftcache::engine::models {
namespace {

const std::string kData = SWIFTCACHE_SOURCE_DIR "/tests/data/";

struct GoldenModel {
  std::string name, path, greedy, logits;  // logits: "" if there are none
};

std::vector<GoldenModel> TinyModels() {
  std::vector<GoldenModel> models;
  for (const std::string name : {"tiny-llama-a", "tiny-llama-b", "tiny-qwen2", "tiny-qwen3"}) {
    const std::string folder = kData + "tiny/" + name;
    models.push_back({name, folder, folder + "/golden.jsonl", folder + "/logits.safetensors"});
  }
  for (const std::string kind : {"f16", "q8_0", "q4_0", "q4_1"}) {
    const std::string stem = kData + "tiny-gguf/tiny-llama-a." + kind;
    models.push_back({"tiny-llama-a." + kind, stem + ".gguf", stem + ".golden.jsonl", stem + ".logits.safetensors"});
  }
  return models;
}

std::vector<GoldenModel> UnusualFiles() {
  std::vector<GoldenModel> models;
  std::ifstream file(kData + "ok/cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    const std::string path = nlohmann::json::parse(line).at("path");
    models.push_back({path, kData + "ok/" + path, kData + "ok/golden.jsonl", ""});
  }
  return models;
}

SequenceRunner MakeRunner(const loader::Checkpoint& checkpoint, const Precision& precision) {
  return SequenceRunner(
      checkpoint.config, *checkpoint.weights,
      {.dtype = precision.dtype, .kv_dtype = precision.kv_dtype, .max_isa = precision.max_isa, .chunk = 640});
}

void CompareModel(const GoldenModel& golden) {
  auto checkpoint = loader::OpenCheckpoint(golden.path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const Precision& precision : AllPrecisions()) {
    SequenceRunner runner = MakeRunner(*checkpoint, precision);
    Comparison result;
    for (const GreedyCase& greedy : ReadGreedyCases(golden.greedy)) CompareGreedy(runner, greedy, precision, result);
    if (!golden.logits.empty()) CompareLogits(runner, ReadGoldenTensors(golden.logits), result);
    std::printf("%-20s %-18s %ld steps compared, %ld differ; %ld logits, largest difference %.6f\n",
                golden.name.c_str(), precision.name.c_str(), result.steps, result.differences, result.logits,
                result.largest);
    EXPECT_GT(result.steps, 0);
    EXPECT_LT(result.largest, precision.logit_tolerance) << golden.name << " " << precision.name;
    EXPECT_EQ(result.logits > 0, !golden.logits.empty());
  }
}

TEST(GoldenTest, TinyModelsGiveTheReferencesTokensAndLogits) {
  ASSERT_EQ(TinyModels().size(), 8u);
  for (const GoldenModel& model : TinyModels()) CompareModel(model);
}

TEST(GoldenTest, UnusualButValidFilesGiveTheReferencesTokens) {
  ASSERT_EQ(UnusualFiles().size(), 17u);
  for (const GoldenModel& model : UnusualFiles()) CompareModel(model);
}

TEST(GoldenTest, ResidualStreamMatchesAfterEveryLayer) {
  int64_t compared = 0;
  for (const GoldenModel& golden : TinyModels()) {
    auto checkpoint = loader::OpenCheckpoint(golden.path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const GoldenTensors tensors = ReadGoldenTensors(golden.logits);
    for (const auto& [name, values] : tensors.values) {
      if (name.rfind("residual_", 0) != 0) continue;
      const std::vector<int32_t>& ids = tensors.ids.at("ids_" + name.substr(std::string("residual_").size()));
      const int64_t hidden = checkpoint->config.hidden_size;
      SequenceRunner runner(checkpoint->config, *checkpoint->weights,
                            {.dtype = ComputeDtype::kF32, .kv_dtype = backend::KvDtype::kF32});
      for (int64_t l = 0; l < checkpoint->config.num_layers; ++l) {
        const std::vector<float> found = runner.Residual(ids, l + 1);
        for (int64_t i = 0; i < hidden; ++i, ++compared) {
          ASSERT_NEAR(found[i], values[l * hidden + i], 1e-4) << golden.name << " layer " << l << " at " << i;
        }
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace swiftcache::engine::models
