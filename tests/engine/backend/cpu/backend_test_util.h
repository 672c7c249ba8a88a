// SPDX-License-Identifier: Apache-2.0
// Random numbers, backends of each ISA, and buffers as plain vectors, for the backend's tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/backend/bf16.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/dequantize.h"
#include "engine/backend/cpu/host_buffer.h"

namespace swiftcache::engine::backend::cpu {

inline std::vector<float> RandomVector(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

inline WeightSource SourceOf(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {.format = WeightFormat::kF32,
          .data = reinterpret_cast<const std::byte*>(values.data()),
          .rows = rows,
          .cols = cols,
          .row_bytes = RowBytes(WeightFormat::kF32, cols)};
}

/// Weights as a file has quantised them: random codes under scales and minima of about 1/64 (K formats: 1/4096, times
/// the block's own). REQUIRES: cols is a multiple of the format's block.
struct QuantizedWeights {
  QuantizedWeights(WeightFormat format_, int64_t rows_, int64_t cols_, uint32_t seed)
      : format(format_), rows(rows_), cols(cols_), bytes(rows_ * RowBytes(format_, cols_)) {
    std::mt19937 random(seed);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    const uint32_t exponent = BlockOf(format).elements == 256 ? 0x0C00u : 0x2400u;
    for (size_t block = 0; block < bytes.size(); block += BlockOf(format).bytes) {
      for (const int64_t at : HalvesOf(format)) {
        const auto value = static_cast<uint16_t>((random() & 0x8000u) | exponent | (random() & 0x3FFu));
        std::memcpy(&bytes[block + at], &value, 2);
      }
    }
  }
  /// Where a block has its scale and minimum.
  static std::vector<int64_t> HalvesOf(WeightFormat format) {
    switch (format) {
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ5_1:
      case WeightFormat::kQ4_K:
      case WeightFormat::kQ5_K:
        return {0, 2};
      case WeightFormat::kQ6_K:
        return {208};
      default:
        return {0};
    }
  }
  WeightSource source() const {
    return {.format = format,
            .data = reinterpret_cast<const std::byte*>(bytes.data()),
            .rows = rows,
            .cols = cols,
            .row_bytes = RowBytes(format, cols)};
  }
  /// By the reference: [rows][cols].
  std::vector<float> Values() const {
    std::vector<float> out(rows * cols);
    for (int64_t r = 0; r < rows; ++r) DequantizeRow(source(), r, out.data() + r * cols);
    return out;
  }

  WeightFormat format;
  int64_t rows, cols;
  std::vector<uint8_t> bytes;
};

inline constexpr WeightFormat kBlockFormats[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                                                 WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kQ4_K,
                                                 WeightFormat::kQ5_K, WeightFormat::kQ6_K};

inline std::unique_ptr<Buffer> UploadVector(Backend& backend, const std::vector<float>& values) {
  const WeightSource source = SourceOf(values, 1, values.size());
  return *backend.UploadVector({&source, 1});
}

inline std::unique_ptr<Backend> MakeBackend(CpuBackendOptions options) {
  if (options.attention.num_heads == 0) options.attention = {2, 1, 4};
  options.kv.num_kv_heads = options.attention.num_kv_heads;
  options.kv.head_dim = options.attention.head_dim;
  if (options.kv.num_layers == 0) options.kv.num_layers = 1;
  if (options.kv.block_tokens == 0) options.kv.block_tokens = 16;
  if (options.inverse_frequencies.empty()) options.inverse_frequencies.assign(options.attention.head_dim / 2, 0.1f);
  auto backend = CreateCpuBackend(options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

inline std::unique_ptr<Buffer> MakeBuffer(Backend& backend, const std::vector<float>& values, int64_t cols) {
  auto buffer = *backend.Allocate(values.size() / cols, cols);
  for (int64_t r = 0; r < buffer->rows(); ++r) {
    std::memcpy(AsHost(*buffer).row(r), values.data() + r * cols, cols * sizeof(float));
  }
  return buffer;
}

inline std::vector<float> Values(const Buffer& buffer, int64_t rows) {
  std::vector<float> out;
  for (int64_t r = 0; r < rows; ++r) {
    out.insert(out.end(), AsHost(buffer).row(r), AsHost(buffer).row(r) + buffer.cols());
  }
  return out;
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

inline double RoundToBf16(double x) { return FromBf16(ToBf16(static_cast<float>(x))); }

}  // namespace swiftcache::engine::backend::cpu
