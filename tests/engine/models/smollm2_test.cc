// SPDX-License-Identifier: Apache-2.0
// SmolLM2-135M itself, where its file has been fetched (deploy/fetch-model.sh).
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "engine/loader/checkpoint.h"
#include "tests/engine/models/golden_cases.h"
#include "tests/fakes/cached_file.h"

namespace swiftcache::engine::models {
namespace {

const std::string kGolden = SWIFTCACHE_SOURCE_DIR "/tests/data/smollm2/";

class SmolLm2Test : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(SmolLm2Path())) {
      GTEST_SKIP() << "no model at " << SmolLm2Path()
                   << "; deploy/fetch-model.sh fetches it, SWIFTCACHE_TEST_MODEL names it";
    }
    auto checkpoint = loader::OpenCheckpoint(SmolLm2Path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
  }

  void Compare(const Precision& precision, double nll_tolerance) {
    if (backend::cpu::BestIsa(precision.max_isa) != precision.max_isa)
      GTEST_SKIP() << "no " << precision.name << " here";
    SequenceRunner runner(checkpoint_.config, *checkpoint_.weights,
                          {.dtype = precision.dtype, .kv_dtype = precision.kv_dtype, .max_isa = precision.max_isa});
    Comparison result;
    for (const GreedyCase& greedy : ReadGreedyCases(kGolden + "greedy.jsonl")) {
      CompareGreedy(runner, greedy, precision, result);
    }
    CompareLogits(runner, ReadGoldenTensors(kGolden + "logits.safetensors"), result);
    double largest_nll = 0;
    for (const LogprobCase& text : ReadLogprobCases(kGolden + "prompt_logprobs.jsonl")) {
      largest_nll = std::max(largest_nll, std::abs(MeanNll(runner, text) - text.mean_nll));
    }
    std::printf(
        "SmolLM2 %s: %ld steps compared, %ld differ; %ld logits, largest difference %.6f; mean NLL within %.6f\n",
        precision.name.c_str(), result.steps, result.differences, result.logits, result.largest, largest_nll);
    EXPECT_GT(result.steps, 600);
    EXPECT_GT(result.logits, 200000);
    EXPECT_LT(result.largest, precision.logit_tolerance);
    EXPECT_LT(largest_nll, nll_tolerance);
  }

  loader::Checkpoint checkpoint_;
};

TEST_F(SmolLm2Test, InF32GivesTheReferencesTokensAndLogits) {
  Compare({"f32", ComputeDtype::kF32, backend::KvDtype::kF32, backend::cpu::BestIsa(backend::cpu::Isa::kAvx512), 1e-3,
           1e-3},
          1e-4);
}

TEST_F(SmolLm2Test, InBf16GivesTheReferencesTokens) {
  Compare({"avx512_bf16/bf16", ComputeDtype::kBf16, backend::KvDtype::kBf16, backend::cpu::Isa::kAvx512Bf16, 0.5, 1.5},
          0.02);
}

TEST_F(SmolLm2Test, OnAmxGivesTheReferencesTokens) {
  Compare({"amx/bf16", ComputeDtype::kBf16, backend::KvDtype::kBf16, backend::cpu::Isa::kAmx, 0.5, 1.5}, 0.02);
}

TEST_F(SmolLm2Test, OnAvx2GivesTheReferencesTokens) {
  Compare({"avx2/bf16", ComputeDtype::kBf16, backend::KvDtype::kBf16, backend::cpu::Isa::kAvx2, 0.5, 1.0}, 0.02);
}

TEST_F(SmolLm2Test, WithKvInInt8GivesTheReferencesTokens) {
  using backend::cpu::BestIsa;
  using backend::cpu::Isa;
  Compare({"KV int8", ComputeDtype::kBf16, backend::KvDtype::kInt8, BestIsa(), 0.5, 1.5}, 0.02);
}

TEST_F(SmolLm2Test, ResidualStreamMatchesTheReferences) {
  SequenceRunner runner(checkpoint_.config, *checkpoint_.weights,
                        {.dtype = ComputeDtype::kF32, .kv_dtype = backend::KvDtype::kF32});
  const GoldenTensors golden = ReadGoldenTensors(kGolden + "logits.safetensors");
  for (const int64_t layer : {0, 14, 29}) {
    const std::vector<float> wanted = golden.values.at("residual_17_after_layer_" + std::to_string(layer));
    const std::vector<float> found = runner.Residual(golden.ids.at("ids_17"), layer + 1);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(found[i], wanted[i], 2e-3 * (1 + 0.01 * std::abs(wanted[i]))) << "layer " << layer << " at " << i;
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::models
