// SPDX-License-Identifier: Apache-2.0
// What a product reads of every stored format: with kF32 the stored values bit for bit, with kBf16 those values rounded,
// and told so.
#include "engine/backend/cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/bf16.h"
#include "engine/backend/cpu/dequantize.h"
#include "engine/loader/checkpoint.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/engine/loader/test_files.h"

namespace swiftcache::engine::backend::cpu {
namespace {

using loader::DataPath;
using loader::ReadFile;

constexpr int64_t kRows = 8, kCols = 256;  // of the 2048 values that tests/data/dequant has of each format

// Stored blocks and their values by GGML's reference.
struct Stored {
  WeightFormat format;
  std::string blocks;
  std::vector<float> values;

  WeightSource source() const {
    return {.format = format,
            .data = reinterpret_cast<const std::byte*>(blocks.data()),
            .rows = kRows,
            .cols = kCols,
            .row_bytes = RowBytes(format, kCols)};
  }
};

Stored ReadStored(WeightFormat format) {
  Stored stored{format, {}, std::vector<float>(kRows * kCols)};
  // Values of F32 are their own reference: any will do whose bits reach down to the last.
  const std::string name = format == WeightFormat::kF32 ? "Q6_K" : NameOf(format);
  std::memcpy(stored.values.data(), ReadFile(DataPath("dequant/") + name + ".f32").data(), kRows * kCols * 4);
  if (format != WeightFormat::kF32) {
    stored.blocks = ReadFile(DataPath("dequant/") + name + ".blocks");
  } else {
    stored.blocks.assign(reinterpret_cast<const char*>(stored.values.data()), kRows * kCols * 4);
  }
  EXPECT_EQ(static_cast<int64_t>(stored.blocks.size()), RowBytes(format, kRows * kCols));
  return stored;
}

std::vector<Stored> EveryFormat() {
  std::vector<Stored> all;
  for (const WeightBlock& block : kWeightBlocks) all.push_back(ReadStored(block.format));
  return all;
}

// A matrix and the memory that it lies in.
class Packed {
 public:
  Packed(std::span<const WeightSource> stacked, Precision precision, int threads = 2, bool int8 = false)
      : pool_(threads) {
    const auto rows = [&](WeightFormat) { return int8 ? Int8Rows::kOnce : Int8Rows::kNone; };
    auto matrix = PackedMatrix::Pack(stacked, precision, rows, arena_, pool_);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    matrix_ = *std::move(matrix);
  }
  const PackedMatrix& operator*() const { return *matrix_; }
  const PackedMatrix* operator->() const { return matrix_.get(); }

  std::vector<float> Rows(int64_t first, int64_t count) const {
    std::vector<float> out(count * matrix_->cols());
    for (int64_t r = 0; r < count; ++r) matrix_->ReadRow(first + r, out.data() + r * matrix_->cols());
    return out;
  }

 private:
  ThreadPool pool_;
  WeightArena arena_;
  std::unique_ptr<PackedMatrix> matrix_;
};

// The definition, in double precision and one value after the other.
PackedMatrix::Rounding RoundingOf(std::span<const float> values) {
  PackedMatrix::Rounding out;
  for (const float value : values) {
    const double rounded = FromBf16(ToBf16(value));
    if (std::isnan(value) || rounded == value) continue;
    out.rounds = true;
    out.largest_relative_error =
        std::max(out.largest_relative_error, static_cast<float>(std::abs(rounded - value) / std::abs(double{value})));
  }
  return out;
}

PackedMatrix::Rounding PackOne(const std::vector<float>& values, Precision precision = Precision::kBf16) {
  const WeightSource source = SourceOf(values, 1, values.size());
  return Packed({&source, 1}, precision)->rounding()[0];
}

TEST(PackedMatrixTest, InF32EveryFormatReadsBackAsTheReferencesBits) {
  const std::vector<Stored> all = EveryFormat();
  ASSERT_EQ(all.size(), 11);
  std::vector<WeightSource> sources;
  for (const Stored& stored : all) sources.push_back(stored.source());
  for (const int threads : {1, 3}) {
    const Packed packed(sources, Precision::kF32, threads);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(SameBits(packed.Rows(i * kRows, kRows), all[i].values)) << NameOf(all[i].format);
      EXPECT_FALSE(packed->rounding()[i].rounds) << NameOf(all[i].format);
      EXPECT_EQ(packed->rounding()[i].largest_relative_error, 0) << NameOf(all[i].format);
    }
  }
}

TEST(PackedMatrixTest, InBf16EveryFormatReadsBackRoundedAndEachSourceOfTheStackSaysSo) {
  const std::vector<Stored> all = EveryFormat();
  std::vector<WeightSource> sources;
  for (const Stored& stored : all) sources.push_back(stored.source());
  const Packed packed(sources, Precision::kBf16);
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<float> rounded = all[i].values;
    for (float& value : rounded) value = FromBf16(ToBf16(value));
    EXPECT_TRUE(SameBits(packed.Rows(i * kRows, kRows), rounded)) << NameOf(all[i].format);
    const PackedMatrix::Rounding wanted = RoundingOf(all[i].values);
    EXPECT_EQ(packed->rounding()[i].rounds, all[i].format != WeightFormat::kBf16) << NameOf(all[i].format);
    EXPECT_EQ(packed->rounding()[i].rounds, wanted.rounds) << NameOf(all[i].format);
    EXPECT_FLOAT_EQ(packed->rounding()[i].largest_relative_error, wanted.largest_relative_error)
        << NameOf(all[i].format);
  }
}

// What a panel takes beyond the file for 256 weights: scales and minima of the K formats have 8 bits, and not 6.
int64_t MoreBytes(WeightFormat format) {
  return format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K ? 8 * 2 - 12 : 0;
}

TEST(PackedMatrixTest, AFormatAloneStaysAsItIsStoredAndReadsBackAsTheReferencesBits) {
  for (const WeightFormat format : kBlockFormats) {
    const Stored stored = ReadStored(format);
    // Rows of the same format above and below, so that panels straddle sources.
    const WeightSource sources[] = {stored.source(), stored.source(), stored.source(), stored.source(),
                                    stored.source()};
    for (const bool int8 : {false, true}) {
      const Packed packed(sources, Precision::kBf16, int8 ? 3 : 1, int8);
      ASSERT_TRUE(packed->quantized()) << NameOf(format);
      EXPECT_EQ(packed->quantized()->int8, int8) << NameOf(format);
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_TRUE(SameBits(packed.Rows(i * kRows, kRows), stored.values)) << NameOf(format);
        EXPECT_FALSE(packed->rounding()[i].rounds) << NameOf(format);
      }
    }
    for (const bool int8 : {false, true}) {
      const Packed panel({sources, 4}, Precision::kBf16, 2, int8);
      EXPECT_EQ(panel->rows(), kPanelCols);
      const int64_t file_bytes = static_cast<int64_t>(4 * stored.blocks.size());
      EXPECT_EQ(panel->bytes(), file_bytes + kPanelCols * kCols / 256 * MoreBytes(format)) << NameOf(format);
    }
    EXPECT_FALSE(Packed({sources, 4}, Precision::kF32)->quantized());
  }
}

// As q, k and v of a Q4_K_M file, half of whose v are Q6_K.
TEST(PackedMatrixTest, AStackOfSeveralFormatsStaysAsItIsStoredWherePanelsHoldOneEach) {
  const Stored first = ReadStored(WeightFormat::kQ4_K), second = ReadStored(WeightFormat::kQ6_K),
               third = ReadStored(WeightFormat::kF16);
  std::vector<WeightSource> sources(4, first.source());  // a panel
  sources.insert(sources.end(), 8, second.source());
  sources.insert(sources.end(), 2, third.source());
  for (const bool int8 : {false, true}) {
    const Packed packed(sources, Precision::kBf16, 2, int8);
    ASSERT_EQ(packed->parts().size(), 3);
    EXPECT_EQ(packed->rows(), 14 * kRows);
    EXPECT_TRUE(packed->parts()[0]->quantized() && packed->parts()[1]->quantized());
    EXPECT_FALSE(packed->parts()[2]->quantized());
    int64_t bytes = 0;
    for (const PackedMatrix* part : packed->parts()) bytes += part->bytes();
    EXPECT_EQ(packed->bytes(), bytes);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(SameBits(packed.Rows(i * kRows, kRows), i < 4 ? first.values : second.values)) << i;
      EXPECT_FALSE(packed->rounding()[i].rounds) << i;
    }
    EXPECT_TRUE(packed->rounding()[13].rounds);
  }
  sources.erase(sources.begin());
  const Packed straddling(sources, Precision::kBf16);
  ASSERT_EQ(straddling->parts().size(), 1) << "a panel would hold rows of two formats";
  EXPECT_FALSE(straddling->parts()[0]->quantized());
}

TEST(PackedMatrixTest, OneValueThatDoesNotFitIsFoundWhereverItStands) {
  for (const int64_t at : {0, 1, 30, 31, 32, 62}) {
    std::vector<float> values(63, 0.5f);
    EXPECT_FALSE(PackOne(values).rounds);
    values[at] = 1 + 0x1p-8f;  // halfway between 1 and the next bf16
    EXPECT_TRUE(PackOne(values).rounds) << at;
    EXPECT_FLOAT_EQ(PackOne(values).largest_relative_error, 0x1p-8f / (1 + 0x1p-8f)) << at;
    EXPECT_FALSE(PackOne(values, Precision::kF32).rounds) << at;
  }
}

TEST(PackedMatrixTest, ZeroesInfinitiesAndNanAreNotRoundedButWhatOverflowsIs) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(PackOne({0.0f, -0.0f, infinity, -infinity, std::nanf(""), -std::nanf("1")}).rounds);
  EXPECT_EQ(PackOne({1.0f, std::numeric_limits<float>::max()}).largest_relative_error, infinity);
  EXPECT_EQ(PackOne({1.0f, std::numeric_limits<float>::denorm_min()}).largest_relative_error, 1);
}

// Every matrix of whole files, q and k in their permuted rows among them.
TEST(PackedMatrixTest, InF32WholeModelsReadBackAsTheirFilesDecode) {
  int64_t matrices = 0;
  for (const std::string name : {"tiny-gguf/tiny-llama-a.f16.gguf", "tiny-gguf/tiny-llama-a.q8_0.gguf",
                                 "tiny-gguf/tiny-llama-a.q4_0.gguf", "tiny-gguf/tiny-llama-a.q4_1.gguf",
                                 "ok/gguf-f32.gguf", "ok/gguf-bf16.gguf", "tiny/tiny-qwen2", "tiny/tiny-qwen3"}) {
    const auto checkpoint = loader::OpenCheckpoint(DataPath(name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const auto& [tensor, source] : checkpoint->weights->tensors()) {
      const Packed packed({&source, 1}, Precision::kF32);
      std::vector<float> wanted(source.rows * source.cols);
      for (int64_t r = 0; r < source.rows; ++r) DequantizeRow(source, r, wanted.data() + r * source.cols);
      EXPECT_TRUE(SameBits(packed.Rows(0, source.rows), wanted)) << name << " " << tensor;
      EXPECT_FALSE(packed->rounding()[0].rounds) << name << " " << tensor;
      ++matrices;
    }
  }
  EXPECT_GT(matrices, 200);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
