// SPDX-License-Identifier: Apache-2.0
// The exact values of stored weights, block by block, in the order of operations of GGML's reference, so that the bits
// are equal. The same source for a CPU and for a GPU; compiled without fused multiply-adds.
//
//   DecodeWeightBlock(WeightFormat::kQ4_0, bytes, [&](int i, float value) { out[i] = value; });
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "engine/backend/gpu_code.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend {
namespace weight_blocks {

template <typename T>
GPU_CODE T Load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Without branches, which on a GPU would keep the loads behind it waiting.
GPU_CODE inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFFu) << 13;
  const float finite = std::bit_cast<float>(magnitude) * 0x1p112f;  // another bias of the exponent: exact
  const uint32_t infinite_or_nan = magnitude | 0x7F800000u;
  return std::bit_cast<float>(((half & 0x7C00u) == 0x7C00u ? infinite_or_nan : std::bit_cast<uint32_t>(finite)) | sign);
}

GPU_CODE inline float LoadHalf(const uint8_t* p) { return HalfToFloat(Load<uint16_t>(p)); }

// Each function decodes one block: put(i, value) for each of its elements. Layouts (byte offsets) stand beside it.

// Q8_0: 0 d f16 | 2 q int8[32]
template <class Put>
GPU_CODE void BlockQ8_0(const uint8_t* b, Put put) {
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) put(i, d * static_cast<float>(static_cast<int8_t>(b[2 + i])));
}

// Q4_0: 0 d f16 | 2 q nibbles[32]: low nibbles are elements 0..15, high ones 16..31
template <class Put>
GPU_CODE void BlockQ4_0(const uint8_t* b, Put put) {
  const float d = LoadHalf(b);
  for (int i = 0; i < 16; ++i) {
    put(i, d * static_cast<float>((b[2 + i] & 15) - 8));
    put(i + 16, d * static_cast<float>((b[2 + i] >> 4) - 8));
  }
}

// Q4_1: 0 d f16 | 2 m f16 | 4 q nibbles[32]
template <class Put>
GPU_CODE void BlockQ4_1(const uint8_t* b, Put put) {
  const float d = LoadHalf(b), m = LoadHalf(b + 2);
  for (int i = 0; i < 16; ++i) {
    put(i, d * static_cast<float>(b[4 + i] & 15) + m);
    put(i + 16, d * static_cast<float>(b[4 + i] >> 4) + m);
  }
}

// Q5_0: 0 d f16 | 2 qh uint32, bit i is the fifth bit of element i | 6 q nibbles[32]
template <class Put>
GPU_CODE void BlockQ5_0(const uint8_t* b, Put put) {
  const float d = LoadHalf(b);
  const auto high = Load<uint32_t>(b + 2);
  for (int i = 0; i < 16; ++i) {
    const int q0 = (b[6 + i] & 15) | static_cast<int>(((high >> i) & 1u) << 4);
    const int q1 = (b[6 + i] >> 4) | static_cast<int>(((high >> (i + 16)) & 1u) << 4);
    put(i, d * static_cast<float>(q0 - 16));
    put(i + 16, d * static_cast<float>(q1 - 16));
  }
}

// Q5_1: 0 d f16 | 2 m f16 | 4 qh uint32 | 8 q nibbles[32]
template <class Put>
GPU_CODE void BlockQ5_1(const uint8_t* b, Put put) {
  const float d = LoadHalf(b), m = LoadHalf(b + 2);
  const auto high = Load<uint32_t>(b + 4);
  for (int i = 0; i < 16; ++i) {
    const int q0 = (b[8 + i] & 15) | static_cast<int>(((high >> i) & 1u) << 4);
    const int q1 = (b[8 + i] >> 4) | static_cast<int>(((high >> (i + 16)) & 1u) << 4);
    put(i, d * static_cast<float>(q0) + m);
    put(i + 16, d * static_cast<float>(q1) + m);
  }
}

struct ScaleMin {
  int scale, min;
};

// Eight 6-bit scales and mins in 12 bytes: the first four of each whole, the last four split into nibble and top bits.
GPU_CODE inline ScaleMin UnpackScale(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4)};
}

// The codes of the K formats: put(i, code, scale, min), scale and min being integers that d and dmin multiply.

// Q4_K: 0 d f16 | 2 dmin f16 | 4 scales[12] | 16 q nibbles[256]: each 32 bytes hold two sub-blocks, low and high
template <class Put>
GPU_CODE void CodesQ4_K(const uint8_t* b, Put put) {
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = UnpackScale(b + 4, j);
    const uint8_t* q = b + 16 + (j / 2) * 32;
    const int shift = (j % 2) * 4;
    for (int i = 0; i < 32; ++i) put(j * 32 + i, (q[i] >> shift) & 15, s.scale, s.min);
  }
}

// Q5_K: 0 d f16 | 2 dmin f16 | 4 scales[12] | 16 qh[32], bit j belongs to sub-block j | 48 q nibbles[256]
template <class Put>
GPU_CODE void CodesQ5_K(const uint8_t* b, Put put) {
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = UnpackScale(b + 4, j);
    const uint8_t* q = b + 48 + (j / 2) * 32;
    const int shift = (j % 2) * 4;
    for (int i = 0; i < 32; ++i) {
      put(j * 32 + i, ((q[i] >> shift) & 15) | (((b[16 + i] >> j) & 1) << 4), s.scale, s.min);
    }
  }
}

// Q6_K: 0 ql nibbles[256] | 128 qh 2-bit[256] | 192 scales int8[16] | 208 d f16. Two halves of 128 elements: element
// 32k + i of a half takes ql byte (k % 2) * 32 + i (low nibble for k < 2), and bits 2k of qh byte i. No min; 32 is zero.
template <class Put>
GPU_CODE void CodesQ6_K(const uint8_t* b, Put put) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* ql = b + half * 64;
    const uint8_t* qh = b + 128 + half * 32;
    const uint8_t* scales = b + 192 + half * 8;
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 32; ++i) {
        const int low = (ql[(k % 2) * 32 + i] >> (k < 2 ? 0 : 4)) & 15;
        const int scale = static_cast<int8_t>(scales[2 * k + i / 16]);
        put(half * 128 + k * 32 + i, low | (((qh[i] >> (2 * k)) & 3) << 4), scale, 0);
      }
    }
  }
}

// The value of a code of Q4_K and Q5_K.
class ScaledLessMin {
 public:
  explicit GPU_CODE ScaledLessMin(const uint8_t* b) : d_(LoadHalf(b)), dmin_(LoadHalf(b + 2)) {}
  GPU_CODE float operator()(int code, int scale, int min) const {
    return d_ * static_cast<float>(scale) * static_cast<float>(code) - dmin_ * static_cast<float>(min);
  }

 private:
  const float d_, dmin_;
};

template <class Put>
GPU_CODE void BlockQ4_K(const uint8_t* b, Put put) {
  const ScaledLessMin value(b);
  CodesQ4_K(b, [&](int i, int code, int scale, int min) { put(i, value(code, scale, min)); });
}

template <class Put>
GPU_CODE void BlockQ5_K(const uint8_t* b, Put put) {
  const ScaledLessMin value(b);
  CodesQ5_K(b, [&](int i, int code, int scale, int min) { put(i, value(code, scale, min)); });
}

template <class Put>
GPU_CODE void BlockQ6_K(const uint8_t* b, Put put) {
  const float d = LoadHalf(b + 208);
  CodesQ6_K(b, [&](int i, int code, int scale, int) {
    put(i, d * static_cast<float>(scale) * static_cast<float>(code - 32));
  });
}

}  // namespace weight_blocks

/// put(i, value) for each element of the block at `block`, at any alignment.
template <class Put>
GPU_CODE void DecodeWeightBlock(WeightFormat format, const uint8_t* block, Put put) {
  switch (format) {
    case WeightFormat::kF32:
      return put(0, weight_blocks::Load<float>(block));
    case WeightFormat::kF16:
      return put(0, weight_blocks::LoadHalf(block));
    case WeightFormat::kBf16:
      return put(0, std::bit_cast<float>(static_cast<uint32_t>(weight_blocks::Load<uint16_t>(block)) << 16));
    case WeightFormat::kQ8_0:
      return weight_blocks::BlockQ8_0(block, put);
    case WeightFormat::kQ4_0:
      return weight_blocks::BlockQ4_0(block, put);
    case WeightFormat::kQ4_1:
      return weight_blocks::BlockQ4_1(block, put);
    case WeightFormat::kQ5_0:
      return weight_blocks::BlockQ5_0(block, put);
    case WeightFormat::kQ5_1:
      return weight_blocks::BlockQ5_1(block, put);
    case WeightFormat::kQ4_K:
      return weight_blocks::BlockQ4_K(block, put);
    case WeightFormat::kQ5_K:
      return weight_blocks::BlockQ5_K(block, put);
    case WeightFormat::kQ6_K:
      return weight_blocks::BlockQ6_K(block, put);
  }
}

}  // namespace swiftcache::engine::backend
