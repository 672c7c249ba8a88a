// SPDX-License-Identifier: Apache-2.0
// Bodies of the kernels that read packed weights: rows of them as numbers, and products of a few rows, for which quantised
// blocks are decoded in registers. A weight has the bits that Kernels::Decode gives it, rounded to bf16.
//
//   UnpackRow<WeightFormat::kQ4_0>(block, op.from, row, op.cols, static_cast<float*>(out));
//   MultiplyOutputs<WeightFormat::kQ4_0, /*kUnits=*/1>(block, op, first_output);
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "engine/backend/bf16.h"
#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/packed_weights.h"
#include "engine/backend/gpu_code.h"
#include "engine/backend/weight_blocks.h"

namespace swiftcache::engine::backend::cuda {

/// A block as it lies in the device's memory, in two places.
template <WeightFormat kFormat>
struct StoredRun {
  static constexpr int64_t kCodes = CodeBytes(kFormat) / 16, kHalves = HalfBytes(kFormat) / 2;
  SixteenBytes codes[kCodes];
  uint16_t halves[kHalves];
};

template <WeightFormat kFormat>
GPU_CODE StoredRun<kFormat> ReadRun(const PackedWeights& from, int64_t block) {
  StoredRun<kFormat> run = {};
  for (int64_t i = 0; i < run.kCodes; ++i) {
    run.codes[i] = static_cast<const SixteenBytes*>(from.numbers)[block * run.kCodes + i];
  }
  for (int64_t i = 0; i < run.kHalves; ++i) run.halves[i] = from.halves[block * run.kHalves + i];
  return run;
}

/// The block is put together again as it was in its file, so that the decoding is that of all formats.
template <WeightFormat kFormat>
GPU_CODE Bf16Run DecodeRun(const StoredRun<kFormat>& from) {
  alignas(16) uint8_t memory[16 + CodeBytes(kFormat)];
  uint8_t* const stored = memory + 16 - HalfBytes(kFormat);
  std::memcpy(stored, from.halves, HalfBytes(kFormat));
  std::memcpy(memory + 16, from.codes, CodeBytes(kFormat));
  float values[Bf16Run::kNumbers];
  DecodeWeightBlock(kFormat, stored, [&values](int i, float value) { values[i] = value; });
  Bf16Run run;
  for (int i = 0; i < 16; ++i) run.pairs[i] = ToBf16Pair(values[2 * i], values[2 * i + 1]);
  return run;
}

/// Two weights at once, to the same bits: scale * (code - 8) has 15 bits at most, the scale is the sum of two numbers of
/// bf16 (its first eight bits, and the other three), and what is fused is rounded once. 389 instructions of sm_90
/// for 64 weights of up to 8 rows, and not 466.
GPU_CODE inline Bf16Run DecodeRun(const StoredRun<WeightFormat::kQ4_0>& from) {
  constexpr uint32_t kOnes = 0x3f803f80, kZeros = 0x80008000 /* -0, which changes no zero's sign */;
  const float scale = weight_blocks::HalfToFloat(from.halves[0]);
  const uint32_t bits = std::bit_cast<uint32_t>(scale), high = bits & 0xffff0000u;
  const uint32_t rest = ToBf16(scale - std::bit_cast<float>(high)) | (bits >> 16 & 0x8000u);  // 0 has the scale's sign
  const uint32_t high_pair = high | high >> 16, rest_pair = rest | rest << 16;
  const auto decode = [&](uint32_t codes) {
    const uint32_t numbers = (codes & 0x000f000fu) | 0x43004300u;   // 128 + code
    const uint32_t below = FusedPair(numbers, kOnes, 0xc308c308u);  // - 136
    return FusedPair(below, high_pair, FusedPair(below, rest_pair, kZeros));
  };
  Bf16Run run;
  for (int i = 0; i < 8; ++i) {  // low halves of bytes are elements 0 to 15, high ones 16 to 31
    const auto two = static_cast<uint32_t>(from.codes[0].words[i / 4] >> i % 4 * 16) & 0xffffu;
    const uint32_t apart = (two & 0xffu) | (two & 0xff00u) << 8;
    run.pairs[i] = decode(apart);
    run.pairs[8 + i] = decode(apart >> 4);
  }
  return run;
}

GPU_CODE inline void StoreRun(Bf16* at, const Bf16Run& run) { *reinterpret_cast<Bf16Run*>(at) = run; }
GPU_CODE inline void StoreRun(float* at, const Bf16Run& run) {
  for (int i = 0; i < Bf16Run::kNumbers; ++i) at[i] = run.At(i);
}

/// out: [cols].
template <WeightFormat kFormat, class Out, class Block>
GPU_CODE void UnpackRow(Block& block, const PackedWeights& from, int64_t row, int64_t cols, Out* out) {
  const int64_t blocks = cols / Bf16Run::kNumbers;
  block.ForEach(blocks, [&](int64_t i) {
    StoreRun(out + i * Bf16Run::kNumbers, DecodeRun(ReadRun<kFormat>(from, row * blocks + i)));
  });
}

/// Sixteen outputs, those from `first` on, of up to 8 * kUnits rows. Where there are fewer, the last one is read again, and
/// what comes of it is dropped.
template <WeightFormat kFormat, int kUnits, class Block>
GPU_CODE void MultiplyOutputs(Block& block, const QuantizedProductOp& op, int64_t first) {
  const int64_t runs = op.cols / Bf16Run::kNumbers;
  block.template MultiplyRuns<kUnits>(
      runs,
      [&](int64_t output, int64_t run) {
        const int64_t there = first + output < op.outputs ? first + output : op.outputs - 1;
        return ReadRun<kFormat>(op.weight, there * runs + run);
      },
      [](const StoredRun<kFormat>& run) { return DecodeRun(run); },
      [&](int64_t row, int64_t run) {
        const int64_t there = row < op.rows ? row : op.rows - 1;
        return reinterpret_cast<const Bf16Run*>(op.in)[there * runs + run];
      },
      [&](int64_t row, int64_t output, float sum) {
        if (row >= op.rows || first + output >= op.outputs) return;
        const int64_t at = row * op.outputs + first + output;
        if (op.out_number == Number::kBf16) return Store(static_cast<Bf16*>(op.out) + at, sum);
        float* const out = static_cast<float*>(op.out) + at;
        if (op.bias != nullptr) sum += op.bias[first + output];
        *out = op.add ? sum + *out : sum;
      });
}

}  // namespace swiftcache::engine::backend::cuda
