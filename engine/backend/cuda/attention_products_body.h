// SPDX-License-Identifier: Apache-2.0
// The body of paged attention by products of bf16, for tensor cores: queries and probabilities are rounded to bf16, sums
// are f32. For KV in bf16 and heads of a multiple of 16. Tiles, parts and their merging are those of attention_body.h.
//
//   AttendTileByProducts(block, memory, attention, tile, kv_head);
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "engine/backend/cuda/attention_body.h"
#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/kv_block.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

inline constexpr int64_t kProductTokens = 32;  // of K and V at a time
inline constexpr int64_t kLanes = 4;           // that share a query's row of scores
inline constexpr int64_t kPadding = 8;         // elements behind each row, so that rows begin in different banks

GPU_CODE constexpr bool HasProducts(int64_t head_dim) { return head_dim % 16 == 0 && head_dim <= 256; }

/// Rows of a tile: 64 queries, or 32 of wide heads, whose sums take more room.
GPU_CODE constexpr int64_t RowsPerProductTile(int64_t group, int64_t head_dim) {
  const int64_t rows = (head_dim > 128 ? 32 : 64) / group;
  return rows < 1 ? 1 : rows;
}

/// K and V that a block holds at once: with two, one comes in while the other is read.
struct KvBuffer {
  BlockMatrix<Bf16> k, v;  // [kProductTokens][head_dim]
};

/// Memory of a block. Queries are whole units of 16, those beyond the tile's are zero.
struct ProductMemory {
  BlockMatrix<Bf16> q;                  // [queries][head_dim]
  KvBuffer first;                       // the second, where there are two, lies behind it
  BlockMatrix<Bf16> p;                  // [queries][kProductTokens]: probabilities
  BlockMatrix<float> scores;            // likewise
  BlockMatrix<float> sums;              // [queries][head_dim]
  const Bf16** rows;                    // [2][kProductTokens]: where the tokens of K, then of V, lie
  float *lanes, *max, *total, *shrink;  // [queries][kLanes], then [queries] each
};

GPU_CODE constexpr int64_t UnitsOf16(int64_t n) { return (n + 15) / 16 * 16; }

/// Bytes of it. buffers: 1 or 2.
GPU_CODE constexpr int64_t ProductBytes(int64_t queries, int64_t head_dim, int64_t buffers) {
  const int64_t rows = UnitsOf16(queries);
  const int64_t bf16 =
      (rows + buffers * 2 * kProductTokens) * (head_dim + kPadding) + rows * (kProductTokens + kPadding);
  const int64_t f32 = rows * (kProductTokens + kPadding) + rows * (head_dim + kPadding) + rows * (kLanes + 3);
  return 2 * bf16 + 4 * f32 + 8 * 2 * kProductTokens;
}

template <class T>
GPU_CODE BlockMatrix<T> TakeMatrix(std::byte*& memory, int64_t rows, int64_t cols) {
  const BlockMatrix<T> matrix = {reinterpret_cast<T*>(memory), cols + kPadding};
  memory += rows * matrix.stride * static_cast<int64_t>(sizeof(T));
  return matrix;
}

GPU_CODE inline ProductMemory DivideProductMemory(std::byte* memory, int64_t queries, int64_t head_dim,
                                                  int64_t buffers) {
  const int64_t rows = UnitsOf16(queries);
  ProductMemory m = {};
  m.q = TakeMatrix<Bf16>(memory, rows, head_dim);
  m.first.k = TakeMatrix<Bf16>(memory, buffers * kProductTokens, head_dim);
  m.first.v = TakeMatrix<Bf16>(memory, buffers * kProductTokens, head_dim);
  m.p = TakeMatrix<Bf16>(memory, rows, kProductTokens);
  m.scores = TakeMatrix<float>(memory, rows, kProductTokens);
  m.sums = TakeMatrix<float>(memory, rows, head_dim);
  m.rows = reinterpret_cast<const Bf16**>(memory);
  m.lanes = reinterpret_cast<float*>(memory + 2 * kProductTokens * static_cast<int64_t>(sizeof(*m.rows)));
  m.max = m.lanes + rows * kLanes;
  m.total = m.max + rows;
  m.shrink = m.total + rows;
  return m;
}

/// Added, not looked up: what is looked up has an address, and then no register.
GPU_CODE inline KvBuffer BufferOf(const ProductMemory& m, int64_t buffer) {
  const int64_t begin = buffer * kProductTokens * m.first.k.stride;
  return {{m.first.k.data + begin, m.first.k.stride}, {m.first.v.data + begin, m.first.v.stride}};
}

template <class T>
GPU_CODE BlockMatrix<const T> AsConst(const BlockMatrix<T>& matrix) {
  return {matrix.data, matrix.stride};
}

template <class Block>
GPU_CODE void LoadProductQueries(Block& block, const ProductMemory& m, const AttentionStep& step,
                                 const AttentionTile& tile, int64_t kv_head) {
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  block.ForEach(UnitsOf16(queries) * dim, [&](int64_t i) {
    const int64_t query = i / dim, d = i % dim;
    float value = 0;
    if (query < queries) {
      const float* row = step.qkv + (tile.first_row + query / group) * step.qkv_cols();
      value = row[(kv_head * group + query % group) * dim + d] * scale;
    }
    Store(m.q.data + query * m.q.stride + d, value);
    m.sums.data[query * m.sums.stride + d] = 0;
  });
  block.ForEach(UnitsOf16(queries), [&](int64_t query) {
    m.max[query] = -std::numeric_limits<float>::infinity();
    m.total[query] = 0;
  });
}

/// Begins to bring the tile that starts at position `first` into a buffer, sixteen bytes at a time: rows of heads begin on
/// them, wherever a block lies. Where each token lies is found once; what follows it adds and copies. Whole numbers of 32
/// bits: a GPU divides those of 64 by a routine, which would cost more than the copies.
template <class Block>
GPU_CODE void BeginProductTile(Block& block, const ProductMemory& m, const KvBuffer buffer, const AttentionStep& step,
                               const AttentionTile& tile, int64_t kv_head, int64_t first) {
  const int64_t count = tile.end_token - first;
  constexpr auto kTokens = static_cast<uint32_t>(kProductTokens);
  constexpr auto kAtOnce = static_cast<uint32_t>(sizeof(SixteenBytes) / sizeof(Bf16));
  block.ForEach(2 * kProductTokens, [&](int64_t i) {
    const int64_t t = i % kProductTokens;
    m.rows[i] = t >= count ? nullptr
                           : KvAt<Bf16>(step.tables, step.kv, tile.sequence, step.layer, first + t, kv_head,
                                        /*value=*/i >= kProductTokens);
  });
  const auto pieces = static_cast<uint32_t>(step.kv.head_dim) / kAtOnce;
  const auto stride = static_cast<uint32_t>(buffer.k.stride);
  block.ForEach(2 * kTokens * pieces, [&](int64_t i) {
    const uint32_t row = static_cast<uint32_t>(i) / pieces, d = static_cast<uint32_t>(i) % pieces * kAtOnce;
    Bf16* const to = row < kTokens ? buffer.k.data + row * stride + d : buffer.v.data + (row - kTokens) * stride + d;
    const Bf16* const from = m.rows[row];
    if (from != nullptr) {
      block.BeginCopy(reinterpret_cast<SixteenBytes*>(to), reinterpret_cast<const SixteenBytes*>(from + d));
    } else {  // tokens beyond the last: zero, so that a probability of 0 times it is 0
      *reinterpret_cast<SixteenBytes*>(to) = SixteenBytes{};
    }
  });
  block.EndCopies();
}

/// The scores of a tile become probabilities under the new maximum; what was summed before shrinks by `shrink`.
template <class Block>
GPU_CODE void ProductSoftmax(Block& block, const ProductMemory& m, const AttentionStep& step, const AttentionTile& tile,
                             int64_t first, int64_t count) {
  const float none = -std::numeric_limits<float>::infinity();
  const int64_t group = step.group(), queries = tile.num_rows * group, rows = UnitsOf16(queries);
  constexpr int64_t kOfLane = kProductTokens / kLanes;
  block.ForEach(rows * kLanes, [&](int64_t i) {
    const int64_t query = i / kLanes, lane = i % kLanes;
    const uint32_t row = static_cast<uint32_t>(query) / static_cast<uint32_t>(group);
    const int64_t seen =  // tokens of the tile, from its first on
        query < queries ? step.tables.position[tile.first_row + row] - first + 1 : 0;
    float* const scores = m.scores.data + query * m.scores.stride;
    float largest = none;
    for (int64_t t = lane * kOfLane; t < (lane + 1) * kOfLane; ++t) {
      if (t >= seen || t >= count) scores[t] = none;
      largest = scores[t] > largest ? scores[t] : largest;
    }
    m.lanes[i] = largest;
  });
  block.ForEach(rows, [&](int64_t query) {
    float largest = m.max[query];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float of_lane = m.lanes[query * kLanes + lane];
      largest = of_lane > largest ? of_lane : largest;
    }
    m.shrink[query] = largest > none ? std::exp(m.max[query] - largest) : 1;
    m.max[query] = largest;
  });
  block.ForEach(rows * kLanes, [&](int64_t i) {
    const int64_t query = i / kLanes, lane = i % kLanes;
    const float max = m.max[query];
    float sum = 0;
    for (int64_t t = lane * kOfLane; t < (lane + 1) * kOfLane; ++t) {
      const float p = max > none ? std::exp(m.scores.data[query * m.scores.stride + t] - max) : 0;
      sum += p;
      Store(m.p.data + query * m.p.stride + t, p);
    }
    m.lanes[i] = sum;
  });
  block.ForEach(rows, [&](int64_t query) {
    float total = m.total[query] * m.shrink[query];
    for (int64_t lane = 0; lane < kLanes; ++lane) total += m.lanes[query * kLanes + lane];
    m.total[query] = total;
  });
  // Maxima settle soon: then nothing shrinks.
  if (block.template Max<int>(rows, 0, [&](int64_t query) { return m.shrink[query] != 1 ? 1 : 0; }) == 0) return;
  const auto dim = static_cast<uint32_t>(step.kv.head_dim);
  block.ForEach(rows * dim, [&](int64_t i) {
    const uint32_t query = static_cast<uint32_t>(i) / dim, d = static_cast<uint32_t>(i) % dim;
    m.sums.data[query * m.sums.stride + d] *= m.shrink[query];
  });
}

/// memory: [ProductBytes()] of the block, on 32 bytes.
template <class Block>
GPU_CODE void AttendTileByProducts(Block& block, std::byte* memory, const AttentionStep& step,
                                   const AttentionTile& tile, int64_t kv_head) {
  if (tile.num_rows == 0) return;
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  const int64_t rows = UnitsOf16(queries);
  const int64_t buffers = step.kv_buffers;
  const ProductMemory m = DivideProductMemory(memory, step.queries_in_memory(), dim, buffers);
  BeginProductTile(block, m, m.first, step, tile, kv_head, tile.first_token);
  LoadProductQueries(block, m, step, tile, kv_head);
  int64_t here = 0;  // the buffer of the tile that is computed
  for (int64_t first = tile.first_token; first < tile.end_token; first += kProductTokens) {
    const int64_t next = first + kProductTokens, left = tile.end_token - first;
    const int64_t count = left < kProductTokens ? left : kProductTokens, there = buffers == 2 ? 1 - here : 0;
    const bool is_last = next >= tile.end_token, ahead = buffers == 2 && !is_last;
    if (ahead) BeginProductTile(block, m, BufferOf(m, there), step, tile, kv_head, next);
    block.AwaitCopies(ahead);
    const KvBuffer kv = BufferOf(m, here);
    block.template Multiply<true>(AsConst(m.q), AsConst(kv.k), m.scores, rows, kProductTokens, dim, /*add=*/false);
    ProductSoftmax(block, m, step, tile, first, count);
    block.template Multiply<false>(AsConst(m.p), AsConst(kv.v), m.sums, rows, dim, kProductTokens, /*add=*/true);
    if (buffers == 1 && !is_last) BeginProductTile(block, m, m.first, step, tile, kv_head, next);
    here = there;
  }
  float* const part = tile.part < 0 ? nullptr : PartOf(step, tile.part, kv_head);
  block.ForEach(queries * dim, [&](int64_t i) {
    const int64_t query = i / dim, d = i % dim;
    const float sum = m.sums.data[query * m.sums.stride + d];
    if (part != nullptr) {
      part[query * (dim + 2) + d] = sum;
      return;
    }
    float* row = step.out + (tile.first_row + query / group) * step.num_heads * dim;
    row[(kv_head * group + query % group) * dim + d] = sum / m.total[query];
  });
  if (part == nullptr) return;
  block.ForEach(queries, [&](int64_t query) {
    part[query * (dim + 2) + dim] = m.max[query];
    part[query * (dim + 2) + dim + 1] = m.total[query];
  });
}

}  // namespace swiftcache::engine::backend::cuda
