// SPDX-License-Identifier: Apache-2.0
// The small models on the CUDA backend: on this machine's GPU (tests/gpu), with the kernels' bodies on the host, or with the
// kernels in emulated blocks of threads, where two models have to do. In either case the order of the stream, the tables of
// a step and the way of weights to the device are still those of a GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/cuda_device.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/decoder.h"
#include "tests/engine/models/golden_cases.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::models {
namespace {

using backend::KvDtype;
using backend::cuda::CudaDevice;
using backend::cuda::OpenTestGpu;
using backend::cuda::TestGpu;
using backend::cuda::WhyNoTestGpu;

// A binary that was carried to another machine finds the sources there.
std::string DataFolder() {
  const char* sources = std::getenv("SWIFTCACHE_SOURCE_DIR");
  return std::string(sources == nullptr ? SWIFTCACHE_SOURCE_DIR : sources) + "/tests/data/";
}

struct CudaPrecision {
  Precision tolerance;
  int64_t chunk;
};

// Rows of a step.
constexpr int64_t kWhole = 640;  // any prompt
constexpr int64_t kSome = 40;    // more than are multiplied by weights decoded in registers; a prompt's last are fewer
constexpr int64_t kShort = 128;  // of a prompt, where time is short

// In chunks of 96 a prompt's rows and those before them are in different steps.
std::vector<CudaPrecision> Precisions(int64_t bf16_chunk) {
  return {{{"cuda/f32", ComputeDtype::kF32, KvDtype::kF32, {}, 1e-3, 1e-3}, kWhole},
          {{"cuda/f32 in chunks", ComputeDtype::kF32, KvDtype::kF32, {}, 1e-3, 1e-3}, 96},
          {{"cuda/bf16", ComputeDtype::kBf16, KvDtype::kBf16, {}, 0.5, 1.5}, bf16_chunk}};
}

// The golden tokens are in `stem` and `greedy`.
void CompareModel(const std::string& name, const std::string& path, const std::string& stem, int64_t bf16_chunk,
                  const std::string& greedy_cases = "golden.jsonl") {
  auto checkpoint = loader::OpenCheckpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const auto& [precision, chunk] : Precisions(bf16_chunk)) {
    const std::unique_ptr<TestGpu> gpu = OpenTestGpu();
    if (gpu->IsSlow() && precision.dtype == ComputeDtype::kF32) continue;
    {
      auto device = CudaDevice::Create(gpu->driver(), gpu->MakeKernels());
      ASSERT_TRUE(device.ok()) << device.status();
      SequenceRunner runner(
          checkpoint->config, *checkpoint->weights,
          {.dtype = precision.dtype, .kv_dtype = precision.kv_dtype, .chunk = chunk, .device = device->get()});
      Comparison result;
      for (const GreedyCase& greedy : ReadGreedyCases(stem + greedy_cases)) {
        if (gpu->IsSlow() && greedy.n_prompt > kShort) continue;
        CompareGreedy(runner, greedy, precision, result);
      }
      CompareLogits(runner, ReadGoldenTensors(stem + "logits.safetensors"), result);
      std::printf("%-20s %-20s %ld steps compared, %ld differ; %ld logits, largest difference %.6f\n", name.c_str(),
                  precision.name.c_str(), result.steps, result.differences, result.logits, result.largest);
      EXPECT_GT(result.steps, 0);
      EXPECT_GT(result.logits, 0);
      EXPECT_LT(result.largest, precision.logit_tolerance) << name << " " << precision.name;
    }
    EXPECT_EQ(gpu->Faults(), "");
  }
}

TEST(CudaGoldenTest, TinyModelsGiveTheReferencesTokensAndLogits) {
  if (OpenTestGpu() == nullptr) GTEST_SKIP() << WhyNoTestGpu();
  std::vector<std::string> names = {"tiny-qwen3"};  // it has all that a model of these families has but biases
  if (!OpenTestGpu()->IsSlow()) names.insert(names.end(), {"tiny-llama-a", "tiny-llama-b", "tiny-qwen2"});
  for (const std::string& name : names) {
    const std::string folder = DataFolder() + "tiny/" + name;
    CompareModel(name, folder, folder + "/", kWhole);
  }
}

TEST(CudaGoldenTest, QuantisedModelsGiveTheReferencesTokensAndLogits) {
  if (OpenTestGpu() == nullptr) GTEST_SKIP() << WhyNoTestGpu();
  std::vector<std::string> kinds = {"q4_0"};
  if (!OpenTestGpu()->IsSlow()) kinds.insert(kinds.end(), {"f16", "q8_0", "q4_1"});
  for (const std::string& kind : kinds) {
    const std::string stem = DataFolder() + "tiny-gguf/tiny-llama-a." + kind;
    CompareModel("tiny-llama-a." + kind, stem + ".gguf", stem + ".", kSome);
  }
}

// On the host it would take an hour.
TEST(CudaGoldenTest, SmolLm2GivesTheReferencesTokensAndLogits) {
  const std::unique_ptr<TestGpu> gpu = OpenTestGpu();
  if (gpu == nullptr) GTEST_SKIP() << WhyNoTestGpu();
  if (!gpu->IsReal()) GTEST_SKIP() << "SmolLM2 wants a GPU";
  const char* const path = std::getenv("SWIFTCACHE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SWIFTCACHE_TEST_MODEL does not name SmolLM2's file (deploy/fetch-model.sh)";
  CompareModel("SmolLM2", path, DataFolder() + "smollm2/", kWhole, "greedy.jsonl");
}

}  // namespace
}  // namespace swiftcache::engine::models
