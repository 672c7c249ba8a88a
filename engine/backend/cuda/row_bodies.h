// SPDX-License-Identifier: Apache-2.0
// Bodies of the kernels that make one row out of one row: what stands before a product, embedding, rotations, and the way
// into the KV blocks. One block of threads each.
//
//   NormRow(block, in, norm, cols, eps, static_cast<Bf16*>(out));
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/kv_block.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

/// Rows of so many columns have all their fours on as many bytes.
GPU_CODE inline bool HasFours(int64_t cols) { return cols % 4 == 0; }

GPU_CODE inline float NormScale(float squares, int64_t cols, float eps) {
  return 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
}

/// in / sqrt(mean(in^2) + eps) * norm. in, norm, out: [cols]. A thread that read one number at a time would wait for memory
/// four times as often.
template <class Out, class Block>
GPU_CODE void NormRow(Block& block, const float* in, const float* norm, int64_t cols, float eps, Out* out) {
  if (!HasFours(cols)) {
    const float squares = block.template Sum<float>(cols, [&](int64_t i) { return in[i] * in[i]; });
    const float scale = NormScale(squares, cols, eps);
    block.ForEach(cols, [&](int64_t i) { Store(out + i, in[i] * scale * norm[i]); });
    return;
  }
  const float squares = block.template Sum<float>(cols / 4, [&](int64_t i) {
    const Four x = LoadFour(in + 4 * i);
    return x.x[0] * x.x[0] + x.x[1] * x.x[1] + x.x[2] * x.x[2] + x.x[3] * x.x[3];
  });
  const float scale = NormScale(squares, cols, eps);
  block.ForEach(cols / 4, [&](int64_t i) {
    Four x = LoadFour(in + 4 * i);
    const Four by = LoadFour(norm + 4 * i);
    for (int e = 0; e < 4; ++e) x.x[e] = x.x[e] * scale * by.x[e];
    StoreFour(out + 4 * i, x);
  });
}

GPU_CODE inline float SiluMul(float gate, float up) { return gate / (1.0f + std::exp(-gate)) * up; }

/// silu(gate) * up of `count` columns, those from `first` on. in: [2 * cols] = gate, up; out: [cols]; both on 16 bytes if
/// they are bf16, and `first` a multiple of 8. A thread that read one bf16 at a time would have too few bytes on their way
/// to use the memory's bandwidth.
template <class Out, class In, class Block>
GPU_CODE void SiluMulRow(Block& block, const In* in, int64_t cols, int64_t first, int64_t count, Out* out) {
  const In *const gate_row = in + first, *const up_row = in + cols + first;
  if constexpr (std::is_same_v<In, Bf16> && std::is_same_v<Out, Bf16>) {
    if (cols % Bf16Eight::kNumbers == 0) {
      const auto *gates = reinterpret_cast<const Bf16Eight*>(gate_row),
                 *ups = reinterpret_cast<const Bf16Eight*>(up_row);
      block.ForEach(count / Bf16Eight::kNumbers, [&](int64_t i) {
        const Bf16Eight gate = gates[i], up = ups[i];
        Bf16Eight product;
        for (int e = 0; e < Bf16Eight::kNumbers; e += 2) {
          product.pairs[e / 2] = ToBf16Pair(SiluMul(gate.At(e), up.At(e)), SiluMul(gate.At(e + 1), up.At(e + 1)));
        }
        reinterpret_cast<Bf16Eight*>(out + first)[i] = product;
      });
      return;
    }
  }
  block.ForEach(count, [&](int64_t i) { Store(out + first + i, SiluMul(Load(gate_row + i), Load(up_row + i))); });
}

template <class Out, class In, class Block>
GPU_CODE void ConvertRow(Block& block, const In* in, int64_t cols, Out* out) {
  if (!HasFours(cols)) return block.ForEach(cols, [&](int64_t i) { Store(out + i, Load(in + i)); });
  block.ForEach(cols / 4, [&](int64_t i) { StoreFour(out + 4 * i, LoadFour(in + 4 * i)); });
}

/// Row i becomes what row rows[i] is, in `count` columns from `first` on. rows: [num_rows], ascending, each once; data:
/// [..][cols]. A thread has a column, and so overwrites nothing that another reads.
template <class T, class Block>
GPU_CODE void KeepRowsOfColumns(Block& block, const int32_t* rows, int64_t num_rows, T* data, int64_t cols,
                                int64_t first, int64_t count) {
  block.ForEach(count, [&](int64_t i) {
    T* const column = data + first + i;
    for (int64_t row = 0; row < num_rows; ++row) column[row * cols] = column[rows[row] * cols];
  });
}

/// The cosines, then the sines of a position. inverse_frequencies: [half]; out: [2 * half]. The angle is an f32 product,
/// as in the models' reference implementation.
template <class Block>
GPU_CODE void RotationsRow(Block& block, const float* inverse_frequencies, int64_t half, int32_t position, float* out) {
  block.ForEach(half, [&](int64_t i) {
    const double angle = static_cast<float>(position) * inverse_frequencies[i];
    out[i] = static_cast<float>(std::cos(angle));
    out[half + i] = static_cast<float>(std::sin(angle));
  });
}

/// One head of q, k or v, [head_dim] at `head`: normed where there is a norm, rotated where there are rotations, and
/// put at `out` where that is not null. In place otherwise.
struct HeadPlace {
  float* head = nullptr;
  const float* norm = nullptr;       // [head_dim] or null
  const float* rotations = nullptr;  // of the row's position, [head_dim], or null
};

template <class Kv, class Block>
GPU_CODE void RotateHead(Block& block, const HeadPlace& place, int64_t head_dim, float eps, Kv* out) {
  float* const head = place.head;
  const int64_t half = head_dim / 2;
  float scale = 1;
  if (place.norm != nullptr) {
    const float squares =
        block.template Sum<float>(half, [&](int64_t i) { return head[i] * head[i] + head[half + i] * head[half + i]; });
    scale = NormScale(squares, head_dim, eps);
  }
  block.ForEach(half, [&](int64_t i) {
    float x = head[i], y = head[half + i];
    if (place.norm != nullptr) {
      x = x * scale * place.norm[i];
      y = y * scale * place.norm[half + i];
    }
    if (place.rotations != nullptr) {
      const float cosine = place.rotations[i], sine = place.rotations[half + i];
      const float rotated = x * cosine - y * sine;
      y = y * cosine + x * sine;
      x = rotated;
    }
    if (place.norm != nullptr || place.rotations != nullptr) {
      head[i] = x;
      head[half + i] = y;
    }
    if (out != nullptr) {
      Store(out + i, x);
      Store(out + half + i, y);
    }
  });
}

/// What RopeAndStoreKv does to a step, head by head of each row: those of q, then of k, then of v. Pointers are the
/// device's. Units: elements.
struct RopeStep {
  StepTables tables;
  KvShape kv;
  int64_t num_heads = 0;
  int64_t layer = 0;
  float eps = 0;
  float* qkv = nullptr;              // [rows][(num_heads + 2 * num_kv_heads) * head_dim]
  const float* q_norm = nullptr;     // [head_dim] or null
  const float* k_norm = nullptr;     // likewise
  const float* rotations = nullptr;  // [rows][head_dim]

  friend bool operator==(const RopeStep&, const RopeStep&) = default;
};

template <class Kv, class Block>
GPU_CODE void RopeAndStoreHead(Block& block, const RopeStep& step, int64_t row, int64_t head) {
  const int64_t dim = step.kv.head_dim, kv_heads = step.kv.num_kv_heads;
  const bool is_q = head < step.num_heads, is_v = head >= step.num_heads + kv_heads;
  HeadPlace place;
  place.head = step.qkv + (row * (step.num_heads + 2 * kv_heads) + head) * dim;
  if (!is_v) {
    place.norm = is_q ? step.q_norm : step.k_norm;
    place.rotations = step.rotations + row * dim;
  }
  Kv* out = nullptr;
  if (!is_q) {
    const int64_t kv_head = is_v ? head - step.num_heads - kv_heads : head - step.num_heads;
    out =
        KvAt<Kv>(step.tables, step.kv, step.tables.sequence[row], step.layer, step.tables.position[row], kv_head, is_v);
  }
  RotateHead(block, place, dim, step.eps, out);
}

}  // namespace swiftcache::engine::backend::cuda
