// SPDX-License-Identifier: Apache-2.0
// Weights that stay quantised: on this machine's GPU (tests/gpu), or with the kernels' bodies on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/bf16.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/quantized_body.h"
#include "engine/backend/weight_blocks.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/engine/backend/cuda/small_shapes.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

using cpu::QuantizedWeights;
using cpu::RandomVector;

constexpr WeightFormat kStaying[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1};
constexpr int64_t kMostRows = QuantizedProductOp::kMostRows;

std::vector<float> Rounded(std::vector<float> values) {
  for (float& value : values) value = FromBf16(ToBf16(value));
  return values;
}

class CudaQuantizedTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu_ = OpenTestGpu();
    if (gpu_ == nullptr) GTEST_SKIP() << WhyNoTestGpu();
    device_ = *CudaDevice::Create(gpu_->driver(), gpu_->MakeKernels());
    Open(Precision::kBf16);
  }
  void TearDown() override {
    matrices_.clear();
    backend_.reset();
    device_.reset();
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->Faults(), "");
    }
  }

  void Open(Precision precision) {
    BackendOptions options = SmallShapes();
    options.precision = precision;
    backend_ = *device_->CreateBackend(options);
  }
  // The device may read it until the end.
  Matrix& Pack(const std::vector<WeightSource>& stacked) {
    auto matrix = backend_->PackMatrix(stacked, Exactness::kUsual);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return *matrices_.emplace_back(*std::move(matrix));
  }
  std::vector<float> Rows(const Matrix& matrix, const std::vector<int32_t>& ids) {
    auto out = *backend_->Allocate(ids.size(), matrix.cols());
    EXPECT_TRUE(backend_->Embed(matrix, ids, *out).ok());
    return Values(*out, out->rows());
  }
  std::vector<float> AllRows(const Matrix& matrix) {
    std::vector<int32_t> ids(matrix.rows());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    return Rows(matrix, ids);
  }
  std::vector<float> Values(Buffer& buffer, int64_t rows) {
    const auto values = backend_->Download(buffer, rows);
    EXPECT_TRUE(values.ok()) << values.status();
    return values.ok() ? std::vector<float>(values->begin(), values->end()) : std::vector<float>();
  }
  // Of values that bf16 holds.
  std::unique_ptr<Buffer> MakeBuffer(const std::vector<float>& values, int64_t cols) {
    const int64_t rows = static_cast<int64_t>(values.size()) / cols;
    auto buffer = *backend_->Allocate(rows, cols);
    std::vector<int32_t> ids(rows);
    for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r);
    EXPECT_TRUE(backend_->Embed(Pack({cpu::SourceOf(values, rows, cols)}), ids, *buffer).ok());
    return buffer;
  }
  // The first rows of `in` and of `before`, which is added, and a bias.
  std::vector<float> Multiply(const Matrix& weight, const std::vector<float>& in, const std::vector<float>& bias,
                              const std::vector<float>& before, int64_t rows) {
    auto x = MakeBuffer(in, weight.cols()), y = MakeBuffer(before, weight.rows());
    auto bias_buffer = cpu::UploadVector(*backend_, bias);
    const absl::Status status = backend_->Linear(
        {.in = x.get(), .rows = rows, .weight = &weight, .bias = bias_buffer.get(), .add = true, .out = y.get()});
    EXPECT_TRUE(status.ok()) << status;
    return Values(*y, rows);
  }
  void CompareProducts(WeightFormat format, int64_t cols, int64_t outputs, const std::vector<int64_t>& row_counts);
  void CompareGatesAndUps(const WeightSource& source, const std::vector<float>& weights, int64_t rows);

  std::unique_ptr<TestGpu> gpu_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Matrix>> matrices_;
};

// On the host alone: all scales that are numbers, all codes.
TEST(DecodeRunTest, TwoWeightsAtOnceHaveTheBitsOfEachByItself) {
  StoredRun<WeightFormat::kQ4_0> run = {};
  uint8_t block[18];
  for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(i | (15 - i) << 4);
  std::memcpy(run.codes, block + 2, 16);
  for (uint32_t scale = 0; scale < 0x10000; ++scale) {
    if ((scale & 0x7c00u) == 0x7c00u) continue;  // infinite, or no number
    run.halves[0] = static_cast<uint16_t>(scale);
    std::memcpy(block, run.halves, 2);
    const Bf16Run found = DecodeRun(run);
    DecodeWeightBlock(WeightFormat::kQ4_0, block, [&](int i, float value) {
      ASSERT_EQ(found.pairs[i / 2] >> 16 * (i % 2) & 0xffffu, ToBf16(value)) << scale << ", element " << i;
    });
  }
}

TEST_F(CudaQuantizedTest, RowsAreThoseOfTheFileRoundedToBf16) {
  for (const WeightFormat format : kStaying) {
    const QuantizedWeights weights(format, 24, 96, 1);
    WeightSource source = weights.source();
    for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
      source.row_order = order;
      source.head_dim = 8;
      std::vector<float> wanted(24 * 96);
      for (int64_t r = 0; r < 24; ++r) cpu::DequantizeRow(source, r, wanted.data() + r * 96);
      Matrix& matrix = Pack({source});
      EXPECT_EQ(matrix.bytes(), 24 * RowBytes(format, 96)) << NameOf(format);
      EXPECT_TRUE(cpu::SameBits(AllRows(matrix), Rounded(wanted))) << NameOf(format);
    }
  }
}

// Beside sums in f64 of what enters the product. A row's bits are the same beside others, as long as there are few.
void CudaQuantizedTest::CompareProducts(WeightFormat format, int64_t cols, int64_t outputs,
                                        const std::vector<int64_t>& row_counts) {
  SCOPED_TRACE(absl::StrCat(NameOf(format), ", ", outputs, " outputs of ", cols));
  const QuantizedWeights weights(format, outputs, cols, 2);
  const std::vector<float> w = Rounded(weights.Values());
  Matrix& matrix = Pack({weights.source()});
  const int64_t most = row_counts.back();
  const std::vector<float> in = Rounded(RandomVector(most * cols, 3)), bias = RandomVector(outputs, 4),
                           before = Rounded(RandomVector(most * outputs, 5));
  std::vector<float> alone;  // rows of few
  for (const int64_t rows : row_counts) {
    const std::vector<float> found = Multiply(matrix, in, bias, before, rows);
    ASSERT_EQ(static_cast<int64_t>(found.size()), rows * outputs);
    for (int64_t i = 0; i < rows * outputs; ++i) {
      double sum = double{bias[i % outputs]} + before[i], size = std::abs(sum);
      for (int64_t c = 0; c < cols; ++c) {
        const double product = double{w[i % outputs * cols + c]} * in[i / outputs * cols + c];
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(found[i], sum, 2e-5 * size) << "at " << i << " of " << rows << " rows";
    }
    if (rows > kMostRows) continue;
    EXPECT_TRUE(cpu::SameBits(std::span(found).first(alone.size()), alone)) << rows << " rows";
    alone = found;
  }
}

TEST_F(CudaQuantizedTest, ProductsAreThoseOfTheRoundedWeights) {
  for (const WeightFormat format : kStaying) {
    CompareProducts(format, 96, 37, {1, 2, 7, 8, 9, 16, 17, 31, 32, 33, kMostRows, kMostRows + 1, 80});
    CompareProducts(format, 32, 1, {1, 8, kMostRows, kMostRows + 1});
    CompareProducts(format, 2080, 16, {1, 9, kMostRows, kMostRows + 1});  // more runs than the warps have in a turn
    if (HasFailure()) return;
  }
}

TEST_F(CudaQuantizedTest, ManyRowsAreMultipliedPanelByPanel) {
  CompareProducts(WeightFormat::kQ4_1, 128 << 10, 130, {kMostRows + 1});  // a panel has 128 outputs of them
}

// silu(gate) * up beside that of gates and ups from sums in f64 that are rounded as those here are. All but few are the
// same: here and there a sum in f32, or its exp, is rounded to the other side. A step of a gate is then at most nine of what
// comes of it, each of 2^-7.
void CudaQuantizedTest::CompareGatesAndUps(const WeightSource& source, const std::vector<float>& weights,
                                           int64_t rows) {
  const int64_t hidden = source.cols, width = source.rows / 2;
  SCOPED_TRACE(absl::StrCat(NameOf(source.format), ", ", rows, " rows of ", hidden, ", ", width, " gates"));
  const std::vector<float> w = Rounded(weights),
                           in = Rounded(RandomVector(rows * hidden, 21, 2 / std::sqrt(static_cast<float>(hidden))));
  std::vector<float> same(width * width);
  for (int64_t i = 0; i < width; ++i) same[i * width + i] = 1;
  auto x = MakeBuffer(in, hidden), product = *backend_->Allocate(rows, width);
  auto gate_up = *backend_->AllocateRounded(rows, 2 * width);
  ASSERT_TRUE(backend_->Linear({.in = x.get(), .rows = rows, .weight = &Pack({source}), .out = gate_up.get()}).ok());
  ASSERT_TRUE(backend_
                  ->Linear({.in = gate_up.get(),
                            .rows = rows,
                            .prologue = Prologue::kSiluMul,
                            .weight = &Pack({cpu::SourceOf(same, width, width)}),
                            .out = product.get()})
                  .ok());
  const std::vector<float> found = Values(*product, rows);
  int64_t differ = 0;
  for (int64_t i = 0; i < rows * width; ++i) {
    double sums[2] = {};
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t c = 0; c < hidden; ++c) {
        sums[half] += double{w[(half * width + i % width) * hidden + c]} * in[i / width * hidden + c];
      }
      sums[half] = cpu::RoundToBf16(sums[half]);
    }
    const double wanted = cpu::RoundToBf16(sums[0] / (1 + std::exp(-sums[0])) * sums[1]);
    ASSERT_NEAR(found[i], wanted, 0x9p-7 * std::abs(wanted)) << "at " << i;
    differ += found[i] != wanted ? 1 : 0;
  }
  EXPECT_LE(differ, rows * width / 50 + 1);
}

TEST_F(CudaQuantizedTest, GatesAndUpsAreRoundedAsTheirBufferSays) {
  for (const int64_t width : {24, 20}) {  // of which eight or one are read at once
    for (const int64_t rows : {int64_t{3}, kMostRows + 1}) {
      const std::vector<float> weights = RandomVector(2 * width * 64, 20, 0.5f);
      CompareGatesAndUps(cpu::SourceOf(weights, 2 * width, 64), weights, rows);
      const QuantizedWeights quantized(WeightFormat::kQ8_0, 2 * width, 64, 22);
      CompareGatesAndUps(quantized.source(), quantized.Values(), rows);
    }
  }
}

TEST_F(CudaQuantizedTest, InF32GatesAndUpsAreNotRounded) {
  matrices_.clear();
  Open(Precision::kF32);
  const std::vector<float> weights = {1.001f, 1.003f};
  auto in = MakeBuffer({1}, 1), gate_up = *backend_->AllocateRounded(1, 2);
  ASSERT_TRUE(
      backend_
          ->Linear({.in = in.get(), .rows = 1, .weight = &Pack({cpu::SourceOf(weights, 2, 1)}), .out = gate_up.get()})
          .ok());
  EXPECT_EQ(Values(*gate_up, 1), weights);
}

TEST_F(CudaQuantizedTest, WhatIsStackedStaysQuantisedWhereAllHasOneFormat) {
  const QuantizedWeights a(WeightFormat::kQ4_0, 5, 64, 6), b(WeightFormat::kQ4_0, 3, 64, 7),
      other(WeightFormat::kQ8_0, 2, 64, 8);
  std::vector<float> wanted = a.Values();
  for (const QuantizedWeights* const more : {&b, &other}) {
    const std::vector<float> values = more->Values();
    wanted.insert(wanted.end(), values.begin(), values.end());
  }
  wanted = Rounded(wanted);
  Matrix &alike = Pack({a.source(), b.source()}), &unlike = Pack({a.source(), b.source(), other.source()});
  EXPECT_EQ(alike.bytes(), 8 * RowBytes(WeightFormat::kQ4_0, 64));
  EXPECT_EQ(unlike.bytes(), 10 * 64 * 2);
  EXPECT_TRUE(cpu::SameBits(AllRows(alike), std::span(wanted).first(8 * 64)));
  EXPECT_TRUE(cpu::SameBits(AllRows(unlike), wanted));
}

TEST_F(CudaQuantizedTest, TheReportNamesWhatStaysQuantised) {
  const QuantizedWeights q4(WeightFormat::kQ4_0, 2, 64, 9), q8(WeightFormat::kQ8_0, 2, 64, 10),
      q5(WeightFormat::kQ5_0, 2, 64, 11);
  EXPECT_EQ(backend_->weights().packed, "bf16");
  Pack({q4.source()});
  EXPECT_EQ(backend_->weights().packed, "Q4_0 (multiplied as bf16)");
  Pack({q8.source()});
  Pack({q5.source()});
  EXPECT_EQ(Describe(backend_->weights()),
            "1 matrix Q8_0, 1 Q4_0, 1 Q5_0 as stored; packed as Q8_0+Q4_0+bf16 (multiplied as bf16), which rounds 3 of "
            "them (largest relative error 0.002)");
  EXPECT_EQ(backend_->name().substr(backend_->name().rfind('/')), "/bf16");
  EXPECT_EQ(device_->PackedBytes(q4.source(), Precision::kBf16), q4.bytes.size());
  EXPECT_EQ(device_->PackedBytes(q5.source(), Precision::kBf16), 2 * 64 * 2);
  EXPECT_EQ(device_->PackedBytes(q4.source(), Precision::kF32), 2 * 64 * 4);
}

TEST_F(CudaQuantizedTest, InF32NothingStaysQuantised) {
  matrices_.clear();
  Open(Precision::kF32);
  const QuantizedWeights weights(WeightFormat::kQ8_0, 6, 96, 12);
  Matrix& matrix = Pack({weights.source()});
  EXPECT_EQ(matrix.bytes(), 6 * 96 * 4);
  EXPECT_TRUE(cpu::SameBits(AllRows(matrix), weights.Values()));
  EXPECT_EQ(backend_->weights().packed, "f32");
  EXPECT_EQ(backend_->weights().rounded, 0);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
