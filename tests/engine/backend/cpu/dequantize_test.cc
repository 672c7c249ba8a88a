// SPDX-License-Identifier: Apache-2.0
// Decoded weights are compared bit for bit with GGML's reference: random blocks of every format, and whole models.
#include "engine/backend/cpu/dequantize.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/loader/gguf_file.h"
#include "engine/loader/mapped_file.h"
#include "tests/engine/loader/test_files.h"

namespace swiftcache::engine::backend::cpu {

namespace {

using loader::DataPath;
using loader::GgufFile;
using loader::GgufTensor;
using loader::MappedFile;
using loader::ReadFile;

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

class RandomBlocks : public testing::TestWithParam<WeightFormat> {};

TEST_P(RandomBlocks, DecodeToTheReferenceBits) {
  const std::string base = DataPath("dequant/") + NameOf(GetParam());
  const std::string blocks = ReadFile(base + ".blocks"), truth = ReadFile(base + ".f32");
  ASSERT_EQ(truth.size(), 2048 * sizeof(float));
  std::vector<float> want(2048), got(2048);
  std::memcpy(want.data(), truth.data(), truth.size());
  ASSERT_EQ(static_cast<int64_t>(blocks.size()), RowBytes(GetParam(), 2048));
  const std::string shifted = "x" + blocks;  // an odd address: files promise no alignment
  DequantizeRow(GetParam(), reinterpret_cast<const std::byte*>(shifted.data() + 1), 2048, got.data());
  EXPECT_EQ(Bits(want), Bits(got));
}

std::vector<WeightFormat> AllButF32() {
  std::vector<WeightFormat> formats;
  for (const WeightBlock& block : kWeightBlocks) {
    if (block.format != WeightFormat::kF32) formats.push_back(block.format);
  }
  return formats;
}

INSTANTIATE_TEST_SUITE_P(AllFormats, RandomBlocks, testing::ValuesIn(AllButF32()),
                         [](const auto& info) { return NameOf(info.param); });

TEST(DequantizeTest, HalvesKeepSubnormalsInfinitiesAndSigns) {
  const uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0x7BFF, 0x7C00, 0xFC00};
  float out[8];
  DequantizeRow(WeightFormat::kF16, reinterpret_cast<const std::byte*>(halves), 8, out);
  const std::vector<float> want = {0.0f, -0.0f, 0x1p-24f, -1023 * 0x1p-24f, 1.0f, 65504.0f, INFINITY, -INFINITY};
  EXPECT_EQ(Bits(want), Bits({out, out + 8}));
}

// The tensor's values as little-endian f32, in stored row order.
std::string HashOfValues(const GgufTensor& tensor) {
  const int64_t cols = tensor.dims[0], row_bytes = RowBytes(tensor.format, cols);
  std::vector<float> row(cols);
  std::string values;
  for (size_t at = 0; at < tensor.data.size(); at += row_bytes) {
    DequantizeRow(tensor.format, tensor.data.data() + at, cols, row.data());
    values.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
  }
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(values.data()), values.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return absl::BytesToHexString(digest);
}

class WholeModel : public testing::TestWithParam<std::string> {};

TEST_P(WholeModel, EveryTensorHasTheReferenceHash) {
  const std::string base = DataPath("tiny-gguf/tiny-llama-a." + GetParam());
  const absl::StatusOr<MappedFile> file = MappedFile::Open(base + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<GgufFile> gguf = GgufFile::Parse(file->bytes(), base);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const nlohmann::json truth = nlohmann::json::parse(ReadFile(base + ".tensors.json"));
  ASSERT_EQ(truth.size(), 39);
  ASSERT_EQ(gguf->tensors().size(), truth.size());
  for (const auto& row : truth) {
    const auto it = gguf->tensors().find(row["name"].get<std::string>());
    ASSERT_NE(it, gguf->tensors().end()) << row["name"];
    EXPECT_EQ(NameOf(it->second.format), row["type"].get<std::string>()) << row["name"];
    EXPECT_EQ(HashOfValues(it->second), row["sha256_f32"].get<std::string>()) << row["name"];
  }
}

INSTANTIATE_TEST_SUITE_P(TinyLlama, WholeModel, testing::Values("f16", "q8_0", "q4_0", "q4_1"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
