// SPDX-License-Identifier: Apache-2.0
// The CUDA backend beside the CPU's, op by op: on this machine's GPU (tests/gpu), or with the kernels' bodies on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/address_space.h"
#include "engine/backend/bf16.h"
#include "engine/backend/cuda/cuda_device.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/engine/backend/cuda/small_shapes.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

using cpu::RandomVector;

class CudaOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu_ = OpenTestGpu();
    if (gpu_ == nullptr) GTEST_SKIP() << WhyNoTestGpu();
    auto device = CudaDevice::Create(gpu_->driver(), gpu_->MakeKernels());
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto backend = device_->CreateBackend(options_);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  void TearDown() override {
    kv_.reset();  // it waits for what the device still does
    tables_.clear();
    backend_.reset();
    device_.reset();
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->Faults(), "");
    }
  }

  std::vector<float> Download(Buffer& buffer) {
    const auto values = backend_->Download(buffer, buffer.rows());
    EXPECT_TRUE(values.ok()) << values.status();
    return values.ok() ? std::vector<float>(values->begin(), values->end()) : std::vector<float>();
  }
  // Rows of a matrix of 1: what comes out is what was put in.
  std::unique_ptr<Buffer> MakeBuffer(Backend& backend, const std::vector<float>& values, int64_t cols) {
    const int64_t rows = static_cast<int64_t>(values.size()) / cols;
    const WeightSource source = cpu::SourceOf(values, rows, cols);
    auto table = backend.PackMatrix({&source, 1}, Exactness::kUsual);
    auto buffer = backend.Allocate(rows, cols);
    std::vector<int32_t> ids(rows);
    for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r);
    EXPECT_TRUE(table.ok() && buffer.ok());
    EXPECT_TRUE(backend.Embed(**table, ids, **buffer).ok());
    tables_.push_back(*std::move(table));  // the device reads it later
    return *std::move(buffer);
  }
  void CompareProducts(Precision precision, int64_t rows, int64_t inputs, double tolerance);
  void CompareAttention(const BackendOptions& options, double tolerance);

  BackendOptions options_ = {
      .precision = Precision::kF32,
      .attention = {kHeads, kKvHeads, kDim},
      .kv = {.num_layers = 2, .num_kv_heads = kKvHeads, .head_dim = kDim, .block_tokens = 16, .dtype = KvDtype::kF32},
      .inverse_frequencies = std::vector<float>(kDim / 2, 0.3f),
      .max_rows = 700};
  std::unique_ptr<TestGpu> gpu_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<KvMemory> kv_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Matrix>> tables_;  // what the device may still read
};

std::vector<float> RoundedVector(int64_t size, uint32_t seed) {
  std::vector<float> values = RandomVector(size, seed);
  for (float& value : values) value = FromBf16(ToBf16(value));
  return values;
}

// In bf16 what stands before a product rounds each of its numbers once.
void CudaOpsTest::CompareProducts(Precision precision, int64_t rows, int64_t inputs, double tolerance) {
  SCOPED_TRACE(absl::StrCat(rows, " rows of ", inputs));
  constexpr int64_t kMostRows = 5, kOut = 13;
  BackendOptions options = options_;
  options.precision = precision;
  const auto gpu = *device_->CreateBackend(options);
  const auto cpu = cpu::MakeBackend({.precision = Precision::kF32});
  const std::vector<float> weights = RoundedVector(kOut * inputs, 1), bias = RandomVector(kOut, 2),
                           norm = RandomVector(inputs, 3), wide = RoundedVector(kMostRows * 2 * inputs, 4),
                           narrow = RoundedVector(kMostRows * inputs, 5), before = RoundedVector(kMostRows * kOut, 6);
  const WeightSource source = cpu::SourceOf(weights, kOut, inputs);
  for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm, Prologue::kSiluMul}) {
    const auto run = [&](Backend& backend, auto make_buffer) {
      auto weight = *backend.PackMatrix({&source, 1}, Exactness::kUsual);
      auto bias_buffer = cpu::UploadVector(backend, bias), norm_buffer = cpu::UploadVector(backend, norm);
      auto in = prologue == Prologue::kSiluMul ? make_buffer(wide, 2 * inputs) : make_buffer(narrow, inputs);
      auto out = make_buffer(before, kOut);
      const absl::Status status = backend.Linear({.in = in.get(),
                                                  .rows = rows,
                                                  .prologue = prologue,
                                                  .norm = norm_buffer.get(),
                                                  .eps = 1e-5f,
                                                  .weight = weight.get(),
                                                  .bias = bias_buffer.get(),
                                                  .add = true,
                                                  .out = out.get()});
      EXPECT_TRUE(status.ok()) << status;
      const auto values = backend.Download(*out, rows);
      return std::vector<float>(values->begin(), values->end());
    };
    const std::vector<float> wanted =
        run(*cpu, [&](const auto& values, int64_t cols) { return cpu::MakeBuffer(*cpu, values, cols); });
    const std::vector<float> found =
        run(*gpu, [&](const auto& values, int64_t cols) { return MakeBuffer(*gpu, values, cols); });
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], tolerance) << "at " << i;
  }
}

TEST_F(CudaOpsTest, RowsThatAreKeptAreThoseThatWereThere) {
  const std::vector<int32_t> kept = {1, 2, 4};
  for (const int64_t cols : {22, 24, 2056}) {
    const auto gpu = *device_->CreateBackend(options_);
    const std::vector<float> before = RandomVector(5 * cols, 1);
    const auto first = MakeBuffer(*gpu, before, cols), second = MakeBuffer(*gpu, before, cols);
    const std::array<Buffer*, 2> buffers = {first.get(), second.get()};
    ASSERT_TRUE(gpu->KeepRows(kept, buffers).ok());
    for (Buffer* buffer : buffers) {
      const std::span<const float> found = *gpu->Download(*buffer, 3);
      for (int64_t row = 0; row < 3; ++row) {
        EXPECT_TRUE(
            std::equal(found.begin() + row * cols, found.begin() + (row + 1) * cols, before.begin() + kept[row] * cols))
            << "row " << row << " of " << cols;
      }
    }
  }
}

// Those that are rounded, too.
TEST_F(CudaOpsTest, RoundedRowsThatAreKeptAreMultipliedAsTheyWere) {
  constexpr int64_t kInputs = 24, kMiddle = 40, kOut = 13, kRows = 5;
  BackendOptions options = options_;
  options.precision = Precision::kBf16;
  const auto gpu = *device_->CreateBackend(options);
  const std::vector<float> first = RoundedVector(kMiddle * kInputs, 1), second = RoundedVector(kOut * kMiddle, 2),
                           rows = RoundedVector(kRows * kInputs, 3);
  const WeightSource sources[] = {cpu::SourceOf(first, kMiddle, kInputs), cpu::SourceOf(second, kOut, kMiddle)};
  const auto to_middle = *gpu->PackMatrix({&sources[0], 1}, Exactness::kUsual),
             to_out = *gpu->PackMatrix({&sources[1], 1}, Exactness::kUsual);
  const auto in = MakeBuffer(*gpu, rows, kInputs), out = *gpu->Allocate(kRows, kOut),
             middle = *gpu->AllocateRounded(kRows, kMiddle);
  const auto multiplied = [&](int64_t num_rows) {
    EXPECT_TRUE(gpu->Linear({.in = middle.get(), .rows = num_rows, .weight = to_out.get(), .out = out.get()}).ok());
    const std::span<const float> values = *gpu->Download(*out, num_rows);
    return std::vector<float>(values.begin(), values.end());
  };
  ASSERT_TRUE(gpu->Linear({.in = in.get(), .rows = kRows, .weight = to_middle.get(), .out = middle.get()}).ok());
  const std::vector<float> all = multiplied(kRows);
  const std::vector<int32_t> kept = {0, 3, 4};
  Buffer* const buffer = middle.get();
  ASSERT_TRUE(gpu->KeepRows(kept, {&buffer, 1}).ok());
  const std::vector<float> found = multiplied(3);
  for (int64_t i = 0; i < 3 * kOut; ++i) EXPECT_NEAR(found[i], all[kept[i / kOut] * kOut + i % kOut], 1e-4) << i;
}

// Columns of which no four, no eight, and more than one block of threads' belong together; one row, and more.
TEST_F(CudaOpsTest, ProductsAreThoseOfACpuWhateverStandsBeforeThem) {
  for (const int64_t rows : {1, 5}) {
    for (const int64_t inputs : {22, 24, 2056}) {
      CompareProducts(Precision::kF32, rows, inputs, inputs < 100 ? 1e-4 : 1e-3);
      CompareProducts(Precision::kBf16, rows, inputs, inputs < 100 ? 0.03 : 0.4);
    }
  }
}

// Numbers of the KV's type that lie in a block where there was something before.
std::vector<float> RandomKv(int64_t bytes, KvDtype dtype, uint32_t seed) {
  if (dtype == KvDtype::kF32) return RandomVector(bytes / sizeof(float), seed);
  const std::vector<float> values = RandomVector(bytes / sizeof(Bf16), seed);
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(ToBf16(value));
  std::vector<float> packed(bytes / sizeof(float));
  std::memcpy(packed.data(), rounded.data(), bytes);
  return packed;
}

// KV as a GPU keeps it, in a CPU's order (cpu/kv_tiles.h); f32 or bf16.
std::vector<float> InCpuOrder(const std::vector<float>& memory, const KvLayout& kv) {
  const int64_t dim = kv.head_dim, bytes = BytesOf(kv.dtype), pack = 4 / bytes;
  if (kv.block_tokens % 16 != 0 || dim % 16 != 0) return memory;
  std::vector<float> ordered(memory.size());
  const auto* from = reinterpret_cast<const std::byte*>(memory.data());
  auto* to = reinterpret_cast<std::byte*>(ordered.data());
  const int64_t of_head = kv.block_tokens * kv.row_bytes(), heads = memory.size() * sizeof(float) / of_head;
  for (int64_t head = 0; head < heads; ++head, to += of_head) {
    const bool is_k = head / kv.num_kv_heads % 2 == 0;
    for (int64_t t = 0; t < kv.block_tokens; ++t) {
      for (int64_t d = 0; d < dim; ++d, from += bytes) {
        const int64_t word = is_k ? t / 16 * 16 * dim / pack + d / pack * 16 + t % 16 : t / pack * dim + d;
        std::memcpy(to + word * 4 + (is_k ? d : t) % pack * bytes, from, bytes);
      }
    }
  }
  return ordered;
}

// A long context beside short ones: some rows' attention is divided, some is not. KV of earlier steps is random.
void CudaOpsTest::CompareAttention(const BackendOptions& options, double tolerance) {
  const KvLayout& kv = options.kv;
  const AttentionShape& shape = options.attention;
  const int64_t cols = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 600}, {3, 40}, {70, 0}, {1, 15}};  // rows, context
  int64_t rows = 0, blocks = 0;
  for (const auto& [count, context] : shapes) {
    rows += count;
    blocks += (context + count + kv.block_tokens - 1) / kv.block_tokens;
  }
  auto backend = device_->CreateBackend(options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  kv_ = *device_->CreateKvMemory({.bytes = blocks * kv.block_bytes(), .block_bytes = kv.block_bytes()});
  const std::vector<float> qkv = RandomVector(rows * cols, 9), norm = RandomVector(shape.head_dim, 10);
  const std::vector<float> gpu_kv = RandomKv(blocks * kv.block_bytes(), kv.dtype, 8);
  gpu_->Write(kv_->base(), gpu_kv);
  std::vector<float> host_kv = InCpuOrder(gpu_kv, kv);
  const auto run = [&](Backend& on, DeviceAddress base, std::unique_ptr<Buffer> in) {
    std::vector<std::vector<DeviceAddress>> addresses;
    std::vector<StepSequence> sequences;
    int64_t next = 0;
    for (const auto& [count, context] : shapes) {
      auto& of_sequence = addresses.emplace_back();
      for (int64_t t = 0; t < context + count; t += kv.block_tokens) {
        of_sequence.push_back(base + (blocks - 1 - next++) * kv.block_bytes());
      }
    }
    for (size_t s = 0; s < shapes.size(); ++s) {
      sequences.push_back({.num_rows = shapes[s].first, .context_tokens = shapes[s].second, .blocks = addresses[s]});
    }
    auto norm_buffer = cpu::UploadVector(on, norm);
    auto out = *on.Allocate(rows, shape.num_heads * shape.head_dim);
    EXPECT_TRUE(on.BeginStep(sequences, {}).ok());
    EXPECT_TRUE(on.RopeAndStoreKv({.layer = 1, .qkv = in.get(), .q_norm = norm_buffer.get(), .eps = 1e-6f}).ok());
    EXPECT_TRUE(on.Attention(1, *in, *out).ok());
    const auto values = on.Download(*out, rows);
    return std::vector<float>(values->begin(), values->end());
  };
  const auto cpu = cpu::MakeBackend({.precision = Precision::kF32,
                                     .max_isa = cpu::Isa::kAvx2,  // which rounds neither queries nor probabilities
                                     .attention = shape,
                                     .kv = kv,
                                     .inverse_frequencies = options.inverse_frequencies,
                                     .max_rows = options.max_rows});
  const std::vector<float> wanted =
      run(*cpu, AddressSpace().Of(reinterpret_cast<std::byte*>(host_kv.data())), cpu::MakeBuffer(*cpu, qkv, cols));
  const std::vector<float> found = run(**backend, kv_->base(), MakeBuffer(**backend, qkv, cols));
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], tolerance) << "at " << i;
  const std::vector<float> stored = InCpuOrder(gpu_->Read(kv_->base(), static_cast<int64_t>(host_kv.size())), kv);
  if (kv.dtype == KvDtype::kF32) {
    for (size_t i = 0; i < host_kv.size(); ++i) ASSERT_NEAR(stored[i], host_kv[i], 1e-5) << "KV at " << i;
  } else {
    const auto *here = reinterpret_cast<const Bf16*>(stored.data()),
               *there = reinterpret_cast<const Bf16*>(host_kv.data());
    for (size_t i = 0; i < 2 * host_kv.size(); ++i) {
      ASSERT_NEAR(FromBf16(here[i]), FromBf16(there[i]), 0.02 + 0.01 * std::abs(FromBf16(there[i]))) << "KV at " << i;
    }
  }
  tables_.clear();
  kv_.reset();
}

TEST_F(CudaOpsTest, AttentionOverBlocksAnywhereIsThatOfACpu) { CompareAttention(options_, 2e-5); }

TEST_F(CudaOpsTest, AttentionByProductsIsThatOfACpuButForRoundingToBf16) {
  for (const int64_t head_dim : {16, 64, 128, 256}) {
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {6, 2}, {8, 1}}) {
      SCOPED_TRACE(absl::StrCat("heads of ", head_dim, ", ", heads, " over ", kv_heads));
      BackendOptions options = options_;
      options.attention = {heads, kv_heads, head_dim};
      options.kv.num_kv_heads = kv_heads;
      options.kv.head_dim = head_dim;
      options.kv.dtype = KvDtype::kBf16;
      options.inverse_frequencies.assign(head_dim / 2, 0.3f);
      CompareAttention(options, 0.03);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaOpsTest, HeadsThatAreNoUnitsOf16AreAttendedToInF32) {
  BackendOptions options = options_;
  options.attention.head_dim = options.kv.head_dim = 10;
  options.kv.dtype = KvDtype::kBf16;
  options.inverse_frequencies.assign(5, 0.3f);
  CompareAttention(options, 2e-3);  // of bf16 keys and values that rounded to either side
}

TEST_F(CudaOpsTest, AStreamedBlockIsReadFromTheSlotOfItsLayer) {
  const KvLayout& kv = options_.kv;
  kv_ = *device_->CreateKvMemory({.bytes = 4 * kv.block_bytes(), .block_bytes = kv.block_bytes()});
  std::vector<float> memory = RandomVector(4 * kv.block_bytes() / sizeof(float), 11);
  const std::vector<float> qkv = RandomVector(kQkv, 12);
  // The first block whole at block 0; then streamed, with layer l's slice at slot l % 2 of block 3.
  std::copy_n(memory.begin(), kv.block_bytes() / sizeof(float), memory.begin() + 3 * kv.block_bytes() / sizeof(float));
  gpu_->Write(kv_->base(), memory);
  const DeviceAddress whole = kv_->base(), own = kv_->base() + kv.block_bytes(),
                      slots = kv_->base() + 3 * kv.block_bytes();
  const DeviceAddress in_place[] = {whole, own}, streamed[] = {DeviceAddress(), own};
  const StreamedBlock block = {.block = 0, .slots = {slots, slots + kv.slice_bytes()}};
  const auto run = [&](std::span<const DeviceAddress> blocks, std::span<const StreamedBlock> of_stream) {
    const StepSequence sequence = {.num_rows = 1, .context_tokens = 20, .blocks = blocks};
    std::vector<float> all;
    for (const int64_t layer : {0, 1}) {
      auto in = MakeBuffer(*backend_, qkv, kQkv);
      auto out = *backend_->Allocate(1, kHeads * kDim);
      EXPECT_TRUE(backend_->BeginStep({&sequence, 1}, of_stream).ok());
      EXPECT_TRUE(backend_->RopeAndStoreKv({.layer = layer, .qkv = in.get()}).ok());
      EXPECT_TRUE(backend_->Attention(layer, *in, *out).ok());
      const std::vector<float> values = Download(*out);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  EXPECT_EQ(run(streamed, {&block, 1}), run(in_place, {}));
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
