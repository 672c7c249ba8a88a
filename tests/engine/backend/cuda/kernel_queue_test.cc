// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/kernel_queue.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/device_memory.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/engine/backend/cuda/cuda_harness.h"
#include "tests/engine/backend/cuda/small_shapes.h"
#include "tests/fakes/host_kernels.h"

namespace swiftcache::engine::backend::cuda {
namespace {

using cpu::RandomVector;

// Two sequences that decode: each step embeds the tokens that the last one chose, attends in two layers, and chooses.
class Decoding {
 public:
  static constexpr int64_t kSequences = 2, kMostTokens = 640, kBlockTokens = 16, kVocabulary = 24;
  static constexpr int64_t kBlocks = kMostTokens / kBlockTokens;

  Decoding(FakeCudaDriver& driver, bool graphs) {
    device_ = *CudaDevice::Create({.graphs = graphs}, driver, std::make_unique<HostKernels>(driver));
    backend_ = *device_->CreateBackend(options_);
    kv_ = *device_->CreateKvMemory(
        {.bytes = kSequences * kBlocks * options_.kv.block_bytes(), .block_bytes = options_.kv.block_bytes()});
    table_ = Pack(kVocabulary, kQkv, 1);
    head_ = Pack(kVocabulary, kHeads * kDim, 2);
    qkv_ = *backend_->Allocate(4, kQkv);
    attended_ = *backend_->Allocate(4, kHeads * kDim);
    logits_ = *backend_->Allocate(4, kVocabulary);
    for (int64_t i = 0; i < kSequences * kBlocks; ++i) {
      blocks_.push_back(kv_->base() + i * options_.kv.block_bytes());
    }
  }

  // Of sequences that have `context` tokens.
  absl::Status Submit(int64_t context, int64_t sequences) {
    std::vector<StepSequence> of;
    std::vector<int32_t> ids;
    std::vector<SampleRow> samples(sequences);
    tokens_.assign(sequences, absl::InternalError("not chosen"));
    for (int64_t s = 0; s < sequences; ++s) {
      of.push_back({1, context + s, std::span(blocks_).subspan(s * kBlocks, kBlocks)});
      ids.push_back(chosen_ > s ? -1 - static_cast<int32_t>(s) : static_cast<int32_t>(s + 3));
      samples[s] = {.logits_row = s, .params = {.temperature = 0}};
    }
    RETURN_IF_ERROR(backend_->BeginStep(of, {}));
    RETURN_IF_ERROR(backend_->Embed(*table_, ids, *qkv_));
    for (int64_t layer = 0; layer < 2; ++layer) {
      RETURN_IF_ERROR(backend_->RopeAndStoreKv({.layer = layer, .qkv = qkv_.get()}));
      RETURN_IF_ERROR(backend_->Attention(layer, *qkv_, *attended_));
      (void)backend_->Submitted();
    }
    RETURN_IF_ERROR(
        backend_->Linear({.in = attended_.get(), .rows = sequences, .weight = head_.get(), .out = logits_.get()}));
    chosen_ = sequences;
    return backend_->Sample(*logits_, samples, std::span(tokens_));
  }
  absl::Status Step(int64_t context, int64_t sequences = kSequences) {
    absl::Status status = Submit(context, sequences);
    backend_->EndStep(status).Wait();
    return status;
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> ids;
    for (const Sampled& token : tokens_) ids.push_back(token.ok() ? token->token_id : -1);
    return ids;
  }

 private:
  std::unique_ptr<Matrix> Pack(int64_t rows, int64_t cols, uint32_t seed) {
    const std::vector<float> values = RandomVector(rows * cols, seed);
    const WeightSource source = cpu::SourceOf(values, rows, cols);
    return *backend_->PackMatrix({&source, 1}, Exactness::kUsual);
  }

  const BackendOptions options_ = {.precision = Precision::kF32,
                                   .attention = {kHeads, kKvHeads, kDim},
                                   .kv = {.num_layers = 2,
                                          .num_kv_heads = kKvHeads,
                                          .head_dim = kDim,
                                          .block_tokens = kBlockTokens,
                                          .dtype = KvDtype::kF32},
                                   .inverse_frequencies = std::vector<float>(kDim / 2, 0.3f),
                                   .max_rows = 16};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<KvMemory> kv_;
  std::unique_ptr<Matrix> table_, head_;
  std::unique_ptr<Buffer> qkv_, attended_, logits_;
  std::vector<DeviceAddress> blocks_;
  std::vector<Sampled> tokens_;
  int64_t chosen_ = 0;
};

TEST(KernelQueueTest, StepsAreTheSameAsGraphsAndOneByOne) {
  FakeCudaDriver with_driver({.most_late_us = 20}), without_driver({.most_late_us = 20});
  {
    Decoding with(with_driver, true), without(without_driver, false);
    // Contexts that pass from one part of attention to several.
    for (int64_t context = 100; context < 300; context += context < 140 ? 1 : 9) {
      ASSERT_TRUE(with.Step(context).ok());
      ASSERT_TRUE(without.Step(context).ok());
      ASSERT_EQ(with.tokens(), without.tokens()) << "behind " << context << " tokens";
    }
    EXPECT_GT(with_driver.graphs_launched(), 100);
    EXPECT_EQ(without_driver.graphs_launched(), 0);
  }
  ExpectClean(with_driver);
  ExpectClean(without_driver);
}

TEST(KernelQueueTest, AStepThatCameTwiceCostsACallAPlaceFromThenOn) {
  FakeCudaDriver driver({.most_late_us = 5});
  {
    Decoding decoding(driver, true);
    for (int64_t context = 20; context < 26; ++context) ASSERT_TRUE(decoding.Step(context).ok());  // the first differs
    const int64_t given = driver.kernels_given(), launched = driver.graphs_launched();
    for (int64_t context = 26; context < 62; ++context) ASSERT_TRUE(decoding.Step(context).ok());
    EXPECT_EQ(driver.kernels_given(), given);
    EXPECT_EQ(driver.graphs_launched(), launched + 36 * 3);  // after each layer, and at the end
  }
  ExpectClean(driver);
}

// Batches of decoding grow and shrink: a place keeps a graph of each of kVariants sizes, and gives up the one that was not
// used for the longest.
TEST(KernelQueueTest, OfMoreVariantsThanAPlaceKeepsTheOldestGoes) {
  constexpr auto kMost = static_cast<int64_t>(KernelQueue::kVariants);
  FakeCudaDriver driver({.most_late_us = 5});
  HostKernels kernels(driver);
  const Stream stream = *driver.CreateStream();
  {
    const DeviceBytes memory = *DeviceBytes::Allocate(driver, 2 * (kMost + 1) * int64_t{sizeof(float)});
    KernelQueue queue(driver, kernels, stream, /*graphs=*/true);
    // Whether a step of so many rows was one call.
    const auto is_graph = [&](int64_t rows) {
      const int64_t given = driver.kernels_given();
      queue.BeginStep(/*kind=*/0, /*repeats=*/true);
      EXPECT_TRUE(queue
                      .Add(PrepareOp{.in = memory.as<float>(),
                                     .rows = rows,
                                     .cols = 1,
                                     .number = Number::kF32,
                                     .out = memory.as<float>() + kMost + 1})
                      .ok());
      EXPECT_TRUE(queue.Flush().ok());
      queue.EndStep();
      return driver.kernels_given() == given;
    };
    for (int round = 0; round < 3; ++round) {  // given, made, launched
      for (int64_t rows = 1; rows <= kMost; ++rows) EXPECT_EQ(is_graph(rows), round == 2) << rows << " rows";
    }
    EXPECT_FALSE(is_graph(kMost + 1));
    EXPECT_TRUE(is_graph(2));
    EXPECT_FALSE(is_graph(1));  // it made way; now that of 3 does
    EXPECT_TRUE(is_graph(kMost));
    EXPECT_FALSE(is_graph(3));
  }
  driver.DestroyStream(stream);
  ExpectClean(driver);
}

// Each call, and further on each seventh, fails once while steps come again and again: the step says so or is right, and the next one is right.
TEST(KernelQueueTest, WhicheverCallFailsTheNextStepIsRight) {
  FakeCudaDriver good_driver({.most_late_us = 5});
  Decoding good(good_driver, false);
  std::vector<std::vector<int32_t>> wanted;
  for (int64_t context = 20; context < 27; ++context) {
    ASSERT_TRUE(good.Step(context).ok());
    wanted.push_back(good.tokens());
  }
  int64_t right_all_the_same = 0;
  for (int64_t nth = 1;; nth += nth < 15 ? 1 : 7) {
    FakeCudaDriver driver({.most_late_us = 5});
    bool failed = false;
    {
      Decoding decoding(driver, true);
      for (int64_t context = 20; context < 27; ++context) {
        if (context == 22) driver.FailAt(nth);  // from the second step of a kind on
        const absl::Status status = decoding.Step(context);
        if (!status.ok()) break;  // tokens would be others from here on
        ASSERT_EQ(decoding.tokens(), wanted[context - 20]) << "call " << nth;
        right_all_the_same += driver.HasFailed() && context == 26;
      }
      failed = driver.HasFailed();
    }
    ExpectClean(driver);
    if (HasFailure()) FAIL() << "call " << nth;
    if (!failed) break;
  }
  EXPECT_GT(right_all_the_same, 0);  // where no graph could be made
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
