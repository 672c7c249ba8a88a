// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend does where the driver fails, or a word changes before a late step is done.
#include "engine/backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/backend/cuda/cuda_device.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/engine/backend/cuda/cuda_harness.h"
#include "tests/engine/backend/cuda/small_shapes.h"
#include "tests/fakes/host_kernels.h"

namespace swiftcache::engine::backend::cuda {
namespace {

using cpu::RandomVector;

// What was asked for.
struct Asked {
  std::vector<ProductOp> products;
  int64_t most_parts = 0;  // of the attention asked for last
  bool skip_products = false;
  std::set<int64_t> product_rows() const {
    std::set<int64_t> rows;
    for (const ProductOp& product : products) rows.insert(product.rows);
    return rows;
  }
};

class RecordingKernels final : public HostKernels {
 public:
  RecordingKernels(FakeCudaDriver& driver, Asked& asked) : HostKernels(driver), asked_(asked) {}
  absl::Status Multiply(Stream stream, const ProductOp& op) override {
    asked_.products.push_back(op);
    return asked_.skip_products ? absl::OkStatus() : HostKernels::Multiply(stream, op);
  }
  absl::Status Attend(Stream stream, const AttendOp& op) override {
    asked_.most_parts = op.most_parts;
    return HostKernels::Attend(stream, op);
  }

 private:
  Asked& asked_;
};

class CudaBackendTest : public testing::Test {
 protected:
  CudaBackendTest() { Open(); }
  ~CudaBackendTest() override { Close(); }

  void Open() {
    auto device = CudaDevice::Create(driver_, std::make_unique<RecordingKernels>(driver_, asked_));
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto backend = device_->CreateBackend(options_);
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  void Close() {
    kv_.reset();  // it waits for what the device still does
    tables_.clear();
    buffers_.clear();
    backend_.reset();
    device_.reset();
    ExpectClean(driver_);
  }

  BackendOptions options_ = {
      .precision = Precision::kF32,
      .attention = {kHeads, kKvHeads, kDim},
      .kv = {.num_layers = 2, .num_kv_heads = kKvHeads, .head_dim = kDim, .block_tokens = 16, .dtype = KvDtype::kF32},
      .inverse_frequencies = std::vector<float>(kDim / 2, 0.3f),
      .max_rows = 700};
  FakeCudaDriver driver_{{.total_bytes = 1 << 30, .most_late_us = 200}};
  Asked asked_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<KvMemory> kv_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Matrix>> tables_;  // what the device may still read
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

TEST_F(CudaBackendTest, AWordThatChangesBeforeTheStepIsDoneIsNamed) {
  std::atomic<uint64_t> steady = 5, changes = 7;
  const WordCheck checks[] = {{&steady, 5}, {&changes, 7}};
  std::vector<int32_t> changed;
  driver_.Pause();
  auto buffer = *backend_->Allocate(8, 8);  // work that the step waits behind
  ASSERT_TRUE(backend_->BeginStep({}, {}).ok());
  ASSERT_TRUE(backend_->CheckWords(checks, changed).ok());
  absl::Status status;
  const Fence done = backend_->EndStep(status);
  EXPECT_FALSE(done.Passed());
  EXPECT_TRUE(changed.empty());
  changes = 8;
  driver_.Resume();
  done.Wait();
  EXPECT_TRUE(done.Passed());
  EXPECT_EQ(changed, std::vector<int32_t>({1}));
}

// The caller of a step whose fence failed has gone when the next one passes: nothing may be written to it any more.
TEST_F(CudaBackendTest, WhatAStepThatFailedHadToTellIsNeverTold) {
  const std::atomic<uint64_t> word = 5;
  const WordCheck checks[] = {{&word, 6}};  // changed: it would be told
  std::vector<int32_t> of_failed, of_next;
  absl::Status failed, next;
  ASSERT_TRUE(backend_->BeginStep({}, {}).ok());
  ASSERT_TRUE(backend_->CheckWords(checks, of_failed).ok());
  driver_.FailAt(1);  // no event for the step's end
  const Fence first = backend_->EndStep(failed);
  first.Wait();
  EXPECT_FALSE(first.Passed());
  EXPECT_FALSE(failed.ok());
  ASSERT_TRUE(backend_->BeginStep({}, {}).ok());
  ASSERT_TRUE(backend_->CheckWords(checks, of_next).ok());
  backend_->EndStep(next).Wait();
  EXPECT_TRUE(next.ok()) << next;
  EXPECT_EQ(of_next.size(), 1u);
  EXPECT_TRUE(of_failed.empty());
}

TEST_F(CudaBackendTest, AFenceThatSomebodyWaitsForCanBeAskedMeanwhile) {
  const std::atomic<uint64_t> word = 5;
  const WordCheck checks[] = {{&word, 5}};
  std::vector<int32_t> changed;
  absl::Status status;
  driver_.Pause();
  auto buffer = *backend_->Allocate(8, 8);  // work that the step waits behind
  ASSERT_TRUE(backend_->BeginStep({}, {}).ok());
  ASSERT_TRUE(backend_->CheckWords(checks, changed).ok());
  const Fence done = backend_->EndStep(status);
  std::atomic<bool> waiting = false;
  std::thread waiter([&] {
    waiting = true;
    done.Wait();
  });
  while (!waiting) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(done.Passed());  // would never return behind Wait's lock
  driver_.Resume();
  waiter.join();
  EXPECT_TRUE(done.Passed());
}

// Each number of rows wants an algorithm of cuBLASLt.
TEST_F(CudaBackendTest, PromptsOfAllLengthsAreMultipliedInFewNumbersOfRows) {
  constexpr int64_t kCols = 16, kOutputs = 4, kMostRows = 300;
  const std::vector<float> weight(kOutputs * kCols, 1);
  const WeightSource source = cpu::SourceOf(weight, kOutputs, kCols);
  auto matrix = *backend_->PackMatrix({&source, 1}, Exactness::kUsual);
  auto in = *backend_->Allocate(kMostRows, kCols), out = *backend_->Allocate(kMostRows, kOutputs);
  for (int64_t rows = 1; rows <= kMostRows; ++rows) {
    ASSERT_TRUE(backend_->Linear({.in = in.get(), .rows = rows, .weight = matrix.get(), .out = out.get()}).ok());
  }
  EXPECT_EQ(asked_.product_rows(), std::set<int64_t>({1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, kMostRows}));
}

TEST_F(CudaBackendTest, QuantisedWeightsAreDecodedForManyRowsAloneInMemoryThatIsThere) {
  constexpr int64_t kCols = 64, kOutputs = 20, kFew = QuantizedProductOp::kMostRows;
  Close();
  options_.precision = Precision::kBf16;
  Open();
  const cpu::QuantizedWeights weights(WeightFormat::kQ8_0, kOutputs, kCols, 14);
  const WeightSource source = weights.source();
  auto matrix = *backend_->PackMatrix({&source, 1}, Exactness::kUsual);
  auto in = *backend_->Allocate(100, kCols), out = *backend_->Allocate(100, kOutputs);
  const int64_t before = driver_.memory()->free_bytes;
  for (const int64_t rows : {int64_t{1}, kFew}) {
    ASSERT_TRUE(backend_->Linear({.in = in.get(), .rows = rows, .weight = matrix.get(), .out = out.get()}).ok());
  }
  EXPECT_EQ(asked_.product_rows(), std::set<int64_t>());
  ASSERT_TRUE(backend_->Linear({.in = in.get(), .rows = kFew + 1, .weight = matrix.get(), .out = out.get()}).ok());
  EXPECT_EQ(asked_.product_rows(), std::set<int64_t>({96}));
  EXPECT_EQ(driver_.memory()->free_bytes, before);
}

TEST_F(CudaBackendTest, PanelsStandSideBySideWhateverTheirNumbers) {
  constexpr int64_t kCols = 128 << 10, kOutputs = 130, kRows = QuantizedProductOp::kMostRows + 1;
  Close();
  options_.precision = Precision::kBf16;
  asked_.skip_products = true;
  Open();
  const cpu::QuantizedWeights weights(WeightFormat::kQ4_0, kOutputs, kCols, 15);
  const WeightSource source = weights.source();
  auto matrix = *backend_->PackMatrix({&source, 1}, Exactness::kUsual);
  auto in = *backend_->Allocate(kRows, kCols);
  for (const Number number : {Number::kF32, Number::kBf16}) {
    const bool rounds = number == Number::kBf16;
    auto out = rounds ? *backend_->AllocateRounded(kRows, kOutputs) : *backend_->Allocate(kRows, kOutputs);
    asked_.products.clear();
    ASSERT_TRUE(backend_->Linear({.in = in.get(), .rows = kRows, .weight = matrix.get(), .out = out.get()}).ok());
    ASSERT_EQ(asked_.products.size(), 2u);
    const auto *first = static_cast<const std::byte*>(asked_.products[0].out),
               *second = static_cast<const std::byte*>(asked_.products[1].out);
    EXPECT_EQ(second - first, 128 * BytesOf(number));
    EXPECT_EQ(asked_.products[1].outputs, kOutputs - 128);
    for (const ProductOp& product : asked_.products) EXPECT_EQ(product.out_number, number);
  }
}

// Each copy costs a call of the driver.
TEST_F(CudaBackendTest, TheTablesOfAStepAreOneCopy) {
  kv_ = *device_->CreateKvMemory({.bytes = options_.kv.block_bytes(), .block_bytes = options_.kv.block_bytes()});
  const DeviceAddress block[] = {kv_->base()};
  const StepSequence sequence = {.num_rows = 2, .context_tokens = 3, .blocks = block};
  backend_->Submitted().Wait();  // what was uploaded at the start
  const int64_t before = driver_.runs_copied();
  ASSERT_TRUE(backend_->BeginStep({&sequence, 1}, {}).ok());
  absl::Status status;
  backend_->EndStep(status).Wait();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(driver_.runs_copied() - before, 1);
}

TEST_F(CudaBackendTest, VectorsShareTheMemoryThatADriverDealsIn) {
  const std::vector<float> norm = RandomVector(1000, 4);  // 4 KiB each, and a unit has 64
  std::vector<std::unique_ptr<Buffer>> vectors;
  for (int i = 0; i < 2; ++i) vectors.push_back(cpu::UploadVector(*backend_, norm));  // and the uploader's buffers
  const int64_t before = driver_.memory()->free_bytes;
  for (int i = 2; i < 16; ++i) vectors.push_back(cpu::UploadVector(*backend_, norm));
  EXPECT_EQ(driver_.memory()->free_bytes, before);
  vectors.push_back(cpu::UploadVector(*backend_, norm));
  EXPECT_EQ(before - driver_.memory()->free_bytes, driver_.info().granularity_bytes);
  vectors.erase(vectors.begin() + 1, vectors.end());  // the first still has its memory
  const auto values = backend_->Download(*vectors.front(), 1);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(std::vector<float>(values->begin(), values->end()), norm);
}

// The fake has four multiprocessors, each of which a block can have nearly all the memory of.
TEST_F(CudaBackendTest, ALongRowIsDividedAmongAsManyBlocksAsRunAtOnce) {
  const std::vector<std::pair<int64_t, int64_t>> blocks_of_dim = {{16, 4}, {64, 4}, {128, 3}, {256, 2}, {10, 2}};
  for (const auto& [dim, blocks] : blocks_of_dim) {
    Close();
    options_.attention = {1, 1, dim};
    options_.kv = {.num_layers = 1, .num_kv_heads = 1, .head_dim = dim, .block_tokens = 16, .dtype = KvDtype::kBf16};
    options_.inverse_frequencies.assign(dim / 2, 0.3f);
    Open();
    kv_ = *device_->CreateKvMemory({.bytes = options_.kv.block_bytes(), .block_bytes = options_.kv.block_bytes()});
    const DeviceAddress block[] = {kv_->base()};
    const StepSequence sequence = {.num_rows = 1, .blocks = block};
    const auto qkv = *backend_->Allocate(1, 3 * dim);
    auto out = *backend_->Allocate(1, dim);
    ASSERT_TRUE(backend_->BeginStep({&sequence, 1}, {}).ok());
    ASSERT_TRUE(backend_->Attention(0, *qkv, *out).ok());
    absl::Status status;
    backend_->EndStep(status).Wait();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(asked_.most_parts, 2 * blocks * driver_.info().multiprocessors) << "heads of " << dim;
  }
}

TEST_F(CudaBackendTest, HeadsThatABlocksMemoryDoesNotHoldAreRefusedAtTheStart) {
  BackendOptions options = options_;
  options.attention = {256, 1, 256};
  options.kv.num_kv_heads = 1;
  options.kv.head_dim = 256;
  options.inverse_frequencies.assign(128, 0.1f);
  const absl::Status status = device_->CreateBackend(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("256 query heads of 256"), absl::string_view::npos) << status;
}

TEST_F(CudaBackendTest, KvInInt8IsRefusedAtTheStart) {
  BackendOptions options = options_;
  options.kv.dtype = KvDtype::kInt8;
  const absl::Status status = device_->CreateBackend(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("--kv_cache_dtype is int8"), absl::string_view::npos) << status;
}

TEST_F(CudaBackendTest, ALostDeviceIsSaidByTheStepAndItsFenceDoesNotPass) {
  auto buffer = *backend_->Allocate(8, 8);
  ASSERT_TRUE(backend_->BeginStep({}, {}).ok());
  absl::Status status;
  driver_.Pause();
  const Fence done = backend_->EndStep(status);
  driver_.Lose();
  done.Wait();
  EXPECT_FALSE(done.Passed());
  EXPECT_TRUE(IsDeviceLost(status)) << status;
}

// Each call of the driver fails once, in turn, in a whole step and what stands before it: an error, or nothing, and no
// memory is left.
TEST_F(CudaBackendTest, WhicheverCallOfTheDriverFailsNothingIsLeft) {
  Close();
  options_.precision = Precision::kBf16;
  int64_t failures = 0;
  for (int64_t nth = 1;; ++nth) {
    driver_.FailAt(nth);
    absl::Status status = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(device_, CudaDevice::Create(driver_, std::make_unique<HostKernels>(driver_)));
      ASSIGN_OR_RETURN(backend_, device_->CreateBackend(options_));
      ASSIGN_OR_RETURN(
          kv_, device_->CreateKvMemory({.bytes = options_.kv.block_bytes(), .block_bytes = options_.kv.block_bytes()}));
      const cpu::QuantizedWeights weights(WeightFormat::kQ4_0, 4, kQkv, 13);
      const WeightSource source = weights.source();
      tables_.resize(1);
      buffers_.resize(2);
      ASSIGN_OR_RETURN(tables_[0], backend_->PackMatrix({&source, 1}, Exactness::kUsual));
      ASSIGN_OR_RETURN(buffers_[0], backend_->Allocate(2, kQkv));
      ASSIGN_OR_RETURN(buffers_[1], backend_->Allocate(2, kHeads * kDim));
      const DeviceAddress block[] = {kv_->base()};
      const StepSequence sequence = {.num_rows = 2, .blocks = block};
      const int32_t ids[] = {0, 3};
      absl::Status step = [&]() -> absl::Status {
        RETURN_IF_ERROR(backend_->BeginStep({&sequence, 1}, {}));
        RETURN_IF_ERROR(backend_->Embed(*tables_[0], ids, *buffers_[0]));
        RETURN_IF_ERROR(backend_->RopeAndStoreKv({.layer = 0, .qkv = buffers_[0].get()}));
        RETURN_IF_ERROR(backend_->Attention(0, *buffers_[0], *buffers_[1]));
        return absl::OkStatus();
      }();
      backend_->EndStep(step).Wait();
      const ByteRange range = {kv_->base(), kv_->bytes()};
      kv_->Zero({&range, 1}).Wait();
      return step;
    }();
    const bool failed = driver_.HasFailed();
    failures += failed && !status.ok();
    if (failed && !status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    }
    Close();
    if (HasFailure()) FAIL() << "call " << nth << ": " << status;
    if (!failed) break;
  }
  EXPECT_GT(failures, 40);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
