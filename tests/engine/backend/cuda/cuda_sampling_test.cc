// SPDX-License-Identifier: Apache-2.0
// What the body that chooses tokens chooses, beside the CPU backend: the same tokens, whatever the logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_device.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

using sample::SamplingParams;
using sample::SamplingState;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CudaSamplingTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu_ = OpenTestGpu();
    if (gpu_ == nullptr) GTEST_SKIP() << WhyNoTestGpu();
    auto device = CudaDevice::Create(gpu_->driver(), gpu_->MakeKernels());
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto backend =
        device_->CreateBackend({.attention = {2, 1, 4},
                                .kv = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 4, .block_tokens = 16},
                                .inverse_frequencies = {0.1f, 0.1f}});
    ASSERT_TRUE(backend.ok()) << backend.status();
    cuda_ = *std::move(backend);
  }
  void TearDown() override {
    cuda_.reset();
    device_.reset();
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->Faults(), "");
    }
  }

  static Sampled Choose(Backend& backend, const std::vector<float>& logits, const SamplingState& state,
                        int64_t position) {
    const auto buffer = cpu::UploadVector(backend, logits);
    EXPECT_TRUE(backend.BeginStep({}, {}).ok());
    const SampleRow row = SampleRowOf(0, state, position);
    Sampled out[1];
    absl::Status status = backend.Sample(*buffer, {&row, 1}, out);
    EXPECT_TRUE(status.ok()) << status;
    backend.EndStep(status).Wait();
    EXPECT_TRUE(status.ok()) << status;
    return out[0];
  }

  void ExpectTheSame(const std::vector<float>& logits, const SamplingState& state, int64_t position,
                     const std::string& what) {
    const Sampled wanted = Choose(*cpu_, logits, state, position), found = Choose(*cuda_, logits, state, position);
    ASSERT_EQ(found.status(), wanted.status()) << what;
    if (!wanted.ok()) return;
    EXPECT_EQ(found->token_id, wanted->token_id) << what;
    EXPECT_NEAR(found->logprob, wanted->logprob, 1e-4 + 1e-6 * std::abs(wanted->logprob)) << what;
    ASSERT_EQ(found->top.size(), wanted->top.size()) << what;
    for (size_t i = 0; i < found->top.size(); ++i) {
      EXPECT_EQ(found->top[i].first, wanted->top[i].first) << what << ", alternative " << i;
    }
  }

  const std::unique_ptr<Backend> cpu_ = cpu::MakeBackend({});
  std::unique_ptr<TestGpu> gpu_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Backend> cuda_;
};

std::vector<float> RandomLogits(std::mt19937& random) {
  const int64_t sizes[] = {1, 7, 255, 256, 1000, 4097, 20'000};
  std::vector<float> logits(sizes[random() % std::size(sizes)]);
  const float spread = std::vector<float>{0.0f, 1e-4f, 0.1f, 3.0f, 50.0f, 1e30f}[random() % 6];
  const float middle = random() % 2 == 0 ? 0.0f : 11.3f;  // beside it a small spread is that of the last bits
  const bool coarse = random() % 3 == 0;                  // many are equal
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (float& x : logits) {
    x = middle + (coarse ? std::round(normal(random) * 2) * spread : normal(random) * spread);
    if (random() % 50 == 0) x = std::numeric_limits<float>::quiet_NaN();
    if (random() % 50 == 0) x = -kInfinity;
    if (random() % 5000 == 0) x = kInfinity;
  }
  return logits;
}

SamplingParams RandomParams(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<float> values) { return *(values.begin() + random() % values.size()); };
  SamplingParams params;
  params.temperature = one_of({0, 0.01f, 0.7f, 1, 1, 2, 100});
  params.top_p = one_of({1, 1, 0.999f, 0.9f, 0.5f, 1e-6f});
  params.top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 40, 1000, 30'000}));
  params.min_p = one_of({0, 0, 0.05f, 0.5f, 1});
  params.seed = random();
  if (random() % 3 == 0) {
    params.repetition_penalty = one_of({1, 1.3f, 0.5f});
    params.presence_penalty = one_of({0, 0.5f, -1});
    params.frequency_penalty = one_of({0, 0.2f, -0.3f});
  }
  if (random() % 2 == 0) params.logprobs = static_cast<int32_t>(random() % 6);
  return params;
}

TEST_F(CudaSamplingTest, RandomRowsGiveTheTokensThatACpuChooses) {
  std::mt19937 random(7);
  for (int i = 0; i < gpu_->Cases(1500); ++i) {
    const std::vector<float> logits = RandomLogits(random);
    const SamplingParams params = RandomParams(random);
    std::vector<int32_t> prompt(random() % 20);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % (logits.size() + 3));
    SamplingState state(params, static_cast<int32_t>(random() % 4), SeenIn(prompt, params));
    for (int64_t n = random() % 10; n > 0; --n) state.Observe(static_cast<int32_t>(random() % logits.size()));
    ExpectTheSame(logits, state, static_cast<int64_t>(random() % 1000),
                  absl::StrCat("case ", i, ": ", logits.size(), " logits, temperature ", params.temperature, ", top_k ",
                               params.top_k, ", top_p ", params.top_p, ", min_p ", params.min_p));
    if (HasFailure()) return;
  }
}

TEST_F(CudaSamplingTest, AlternativesAreNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SamplingState greedy({.temperature = 0, .logprobs = 5}, 0, {});
  ExpectTheSame({nan, 1, -kInfinity, 0, nan, -kInfinity, nan}, greedy, 0, "two numbers and five alternatives");
}

TEST_F(CudaSamplingTest, ATokenThatTheHostHasNotSeenYetIsEmbedded) {
  const std::vector<float> rows = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  const WeightSource source = cpu::SourceOf(rows, 3, 4);
  auto table = cuda_->PackMatrix({&source, 1}, Exactness::kUsual);
  auto out = cuda_->Allocate(2, 4);
  ASSERT_TRUE(table.ok() && out.ok());
  const auto logits = cpu::UploadVector(*cuda_, {0, 1, 5});
  const SamplingState greedy({.temperature = 0}, 0, {});
  const SampleRow row = SampleRowOf(0, greedy, 0);
  Sampled chosen[1];
  ASSERT_TRUE(cuda_->BeginStep({}, {}).ok());
  ASSERT_TRUE(cuda_->Sample(*logits, {&row, 1}, chosen).ok());
  absl::Status first, second;
  const Fence first_done = cuda_->EndStep(first);
  const int32_t ids[] = {-1, 1};  // the first row's choice
  ASSERT_TRUE(cuda_->BeginStep({}, {}).ok());
  ASSERT_TRUE(cuda_->Embed(**table, ids, **out).ok());
  cuda_->EndStep(second).Wait();
  first_done.Wait();
  EXPECT_EQ(chosen[0]->token_id, 2);
  const auto embedded = cuda_->Download(**out, 2);
  ASSERT_TRUE(embedded.ok()) << embedded.status();
  EXPECT_EQ(std::vector<float>(embedded->begin(), embedded->end()), std::vector<float>({2, 2, 2, 2, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
