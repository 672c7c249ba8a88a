// SPDX-License-Identifier: Apache-2.0
// What a model takes of a GPU, and when.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/units.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/models/create_model.h"
#include "engine/sample/sampling_state.h"
#include "tests/engine/models/sequence_runner.h"
#include "tests/engine/models/tiny_config.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/host_kernels.h"
#include "tests/fakes/synthetic_weights.h"

namespace swiftcache::engine::models {
namespace {

using backend::cuda::CudaDevice;
using backend::cuda::DeviceBytes;
using backend::cuda::FakeCudaDriver;
using backend::cuda::HostKernels;
using sample::SamplingState;

// KV memory takes what is free once the model is there.
TEST(CudaMemoryTest, NoStepTakesMemoryHoweverItsTokensAreChosen) {
  constexpr int64_t kSequences = 5, kPrompt = 7;
  FakeCudaDriver driver({.total_bytes = 64 * kMiB});
  {
    auto device = CudaDevice::Create(driver, std::make_unique<HostKernels>(driver)).value();
    loader::ModelConfig config = TinyConfig();
    config.vocab_size = 20'000;  // so that a copy of a row's logits is more than the driver deals in
    const SyntheticWeights weights(config);
    const backend::KvLayout kv = {config.num_layers, config.num_kv_heads, config.head_dim, 16, backend::KvDtype::kBf16};
    ModelOptions options = {.kv = kv, .max_batch_rows = 64, .max_logit_rows = kSequences};
    auto model = CreateModel(config, weights, *device, options);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<SequenceBlocks> blocks;
    for (int64_t s = 0; s < kSequences; ++s) blocks.emplace_back(kv, 16, device.get());
    const auto rest = DeviceBytes::Allocate(driver, driver.memory()->free_bytes);
    ASSERT_TRUE(rest.ok()) << rest.status();
    const int64_t allocations = driver.allocations();

    const std::vector<int32_t> prompt = RandomIds(kPrompt, 1);
    const sample::SeenToken seen[] = {{3, 1}, {40, 2}};
    const SamplingState state({.repetition_penalty = 1.5f, .logprobs = 20}, /*continuation=*/0, seen);
    for (int64_t n = 1; n <= kSequences; ++n) {
      std::vector<int32_t> ids, logit_rows;
      std::vector<backend::StepSequence> sequences;
      std::vector<backend::SampleRow> samples;
      for (int64_t s = 0; s < n; ++s) {
        ids.insert(ids.end(), prompt.begin(), prompt.end());
        sequences.push_back({kPrompt, 0, blocks[s].addresses()});
        logit_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
        samples.push_back(backend::SampleRowOf(s, state, kPrompt));
      }
      ForwardResult result;
      (*model)
          ->Run({.token_ids = ids, .sequences = sequences, .logit_rows = logit_rows, .samples = samples}, nullptr,
                result)
          .Wait();
      ASSERT_TRUE(result.status.ok()) << n << ": " << result.status;
      EXPECT_TRUE(result.tokens[n - 1].ok());
    }
    EXPECT_EQ(driver.allocations(), allocations);
  }
  EXPECT_EQ(driver.Misuse(), "");
  EXPECT_EQ(driver.Leaks(), "");
}

}  // namespace
}  // namespace swiftcache::engine::models
