// SPDX-License-Identifier: Apache-2.0
// Paged attention: what its kernels have in common, and the body of the plain one, for any head size, in f32. KV lies
// anywhere. Some rows of one sequence share the tiles of K and V that a block of threads brings into its own memory.
// attention_products_body.h is the fast one.
//
//   AttendTile<Bf16>(block, memory, attention, tile, kv_head);
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/backend/cuda/kv_block.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

inline constexpr int64_t kTileTokens = 32;      // of K and V at a time
inline constexpr int64_t kTileElements = 4096;  // of queries and sums: a wide head has fewer rows a tile

/// Some rows of one sequence, and the part of its KV that they are to see here. A row's positions may be divided among
/// several tiles: then each leaves its sums in `partial`, and MergeParts puts them together. One of no rows is nothing to
/// do: it makes the number of tiles a round one.
struct AttentionTile {
  int32_t sequence = 0;
  int32_t first_row = 0, num_rows = 0;     // of the step
  int32_t first_token = 0, end_token = 0;  // positions of the KV
  int32_t part = -1;                       // which of `partial`; none: it sees all, and writes `out`
};

/// Rows whose attention was divided: parts first_part, first_part + 1, ... are of the same rows.
struct DividedTile {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_part = 0, num_parts = 0;
};

/// The attention of one layer. Pointers are the device's.
struct AttentionStep {
  StepTables tables;
  KvShape kv;
  int64_t num_heads = 0;
  int64_t rows_per_tile = 0;   // of any step, at most
  int64_t rows_in_memory = 0;  // of this one
  int64_t kv_buffers = 1;      // of a block that attends by products
  int64_t layer = 0;
  const float* qkv = nullptr;  // [rows][(num_heads + 2 * num_kv_heads) * head_dim]
  void* out = nullptr;         // [rows][num_heads * head_dim]
  Number out_number = Number::kF32;
  float* partial = nullptr;  // [parts][num_kv_heads][queries()][head_dim + 2]: sums, then the maximum and the total

  friend bool operator==(const AttentionStep&, const AttentionStep&) = default;
  GPU_CODE int64_t group() const { return num_heads / kv.num_kv_heads; }
  GPU_CODE int64_t queries() const { return rows_per_tile * group(); }  // of a part
  GPU_CODE int64_t queries_in_memory() const { return rows_in_memory * group(); }
  GPU_CODE int64_t qkv_cols() const { return (num_heads + 2 * kv.num_kv_heads) * kv.head_dim; }
};

/// Rows of a tile of the plain kernel, where `group` query heads share a KV head.
GPU_CODE constexpr int64_t RowsPerTile(int64_t group, int64_t head_dim) {
  const int64_t rows = kTileElements / (group * head_dim);
  return rows < 1 ? 1 : rows;
}

/// Where a part's sums lie.
GPU_CODE inline float* PartOf(const AttentionStep& step, int64_t part, int64_t kv_head) {
  return step.partial + (part * step.kv.num_kv_heads + kv_head) * step.queries() * (step.kv.head_dim + 2);
}

/// Number `at` of the result.
GPU_CODE inline void PutResult(const AttentionStep& step, int64_t at, float value) {
  if (step.out_number == Number::kBf16) return Store(static_cast<Bf16*>(step.out) + at, value);
  Store(static_cast<float*>(step.out) + at, value);
}
/// And the three behind it.
GPU_CODE inline void PutResult(const AttentionStep& step, int64_t at, const Four& four) {
  if (step.out_number == Number::kBf16) return StoreFour(static_cast<Bf16*>(step.out) + at, four);
  StoreFour(static_cast<float*>(step.out) + at, four);
}

/// Memory of a block, as floats: queries and sums [queries][head_dim], K and V [kTileTokens][head_dim + 1], scores
/// [queries][kTileTokens], and of each query the maximum, the total and what its sums shrink by.
struct TileMemory {
  float *q, *sums, *k, *v, *scores, *max, *total, *shrink;
};

GPU_CODE constexpr int64_t TileFloats(int64_t queries, int64_t head_dim) {
  return 2 * queries * head_dim + 2 * kTileTokens * (head_dim + 1) + queries * kTileTokens + 3 * queries;
}

GPU_CODE inline TileMemory DivideTileMemory(float* memory, int64_t queries, int64_t head_dim) {
  TileMemory m = {};
  m.q = memory;
  m.sums = m.q + queries * head_dim;
  m.k = m.sums + queries * head_dim;
  m.v = m.k + kTileTokens * (head_dim + 1);
  m.scores = m.v + kTileTokens * (head_dim + 1);
  m.max = m.scores + queries * kTileTokens;
  m.total = m.max + queries;
  m.shrink = m.total + queries;
  return m;
}

/// Query i of a tile is head i % group of row i / group.
template <class Block>
GPU_CODE void LoadQueries(Block& block, const TileMemory& m, const AttentionStep& step, const AttentionTile& tile,
                          int64_t kv_head) {
  const int64_t dim = step.kv.head_dim, group = step.group();
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  block.ForEach(tile.num_rows * group * dim, [&](int64_t i) {
    const int64_t query = i / dim;
    const float* row = step.qkv + (tile.first_row + query / group) * step.qkv_cols();
    m.q[i] = row[(kv_head * group + query % group) * dim + i % dim] * scale;
    m.sums[i] = 0;
  });
  block.ForEach(tile.num_rows * group, [&](int64_t query) {
    m.max[query] = -std::numeric_limits<float>::infinity();
    m.total[query] = 0;
  });
}

/// Adds the positions [first, first + count) to the sums of every query that sees them.
template <class Kv, class Block>
GPU_CODE void AddTokens(Block& block, const TileMemory& m, const AttentionStep& step, const AttentionTile& tile,
                        int64_t kv_head, int64_t first, int64_t count) {
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  block.ForEach(count * dim, [&](int64_t i) {
    const int64_t t = i / dim, d = i % dim, position = first + t;
    m.k[t * (dim + 1) + d] =
        Load(KvAt<Kv>(step.tables, step.kv, tile.sequence, step.layer, position, kv_head, false) + d);
    m.v[t * (dim + 1) + d] =
        Load(KvAt<Kv>(step.tables, step.kv, tile.sequence, step.layer, position, kv_head, true) + d);
  });
  block.ForEach(queries * count, [&](int64_t i) {
    const int64_t query = i / count, t = i % count;
    const bool sees = first + t <= step.tables.position[tile.first_row + query / group];
    float score = 0;
    for (int64_t d = 0; d < dim; ++d) score += m.q[query * dim + d] * m.k[t * (dim + 1) + d];
    m.scores[query * kTileTokens + t] = sees ? score : -std::numeric_limits<float>::infinity();
  });
  block.ForEach(queries, [&](int64_t query) {
    float* const scores = m.scores + query * kTileTokens;
    float largest = m.max[query];
    for (int64_t t = 0; t < count; ++t) largest = scores[t] > largest ? scores[t] : largest;
    const bool sees_none = !(largest > -std::numeric_limits<float>::infinity());
    m.shrink[query] = sees_none ? 1 : std::exp(m.max[query] - largest);
    float total = m.total[query] * m.shrink[query];
    for (int64_t t = 0; t < count; ++t) {
      scores[t] = sees_none ? 0 : std::exp(scores[t] - largest);
      total += scores[t];
    }
    m.max[query] = largest;
    m.total[query] = total;
  });
  block.ForEach(queries * dim, [&](int64_t i) {
    const int64_t query = i / dim, d = i % dim;
    float sum = m.sums[i] * m.shrink[query];
    for (int64_t t = 0; t < count; ++t) sum += m.scores[query * kTileTokens + t] * m.v[t * (dim + 1) + d];
    m.sums[i] = sum;
  });
}

/// memory: [TileFloats()] of the block.
template <class Kv, class Block>
GPU_CODE void AttendTile(Block& block, float* memory, const AttentionStep& step, const AttentionTile& tile,
                         int64_t kv_head) {
  if (tile.num_rows == 0) return;
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  const TileMemory m = DivideTileMemory(memory, step.queries_in_memory(), dim);
  LoadQueries(block, m, step, tile, kv_head);
  for (int64_t first = tile.first_token; first < tile.end_token; first += kTileTokens) {
    const int64_t left = tile.end_token - first;
    AddTokens<Kv>(block, m, step, tile, kv_head, first, left < kTileTokens ? left : kTileTokens);
  }
  if (tile.part < 0) {
    block.ForEach(queries * dim, [&](int64_t i) {
      const int64_t query = i / dim;
      const int64_t row = tile.first_row + query / group, head = kv_head * group + query % group;
      PutResult(step, (row * step.num_heads + head) * dim + i % dim, m.sums[i] / m.total[query]);
    });
    return;
  }
  float* const part = PartOf(step, tile.part, kv_head);
  block.ForEach(queries * (dim + 2), [&](int64_t i) {
    const int64_t query = i / (dim + 2), d = i % (dim + 2);
    part[i] = d < dim ? m.sums[query * dim + d] : d == dim ? m.max[query] : m.total[query];
  });
}

/// A number of a query whose tokens were divided.
struct MergedSum {
  float sum = 0, total = 0, max = -std::numeric_limits<float>::infinity();
};

/// Number d of a query of which each of `count` parts, `stride` floats apart, has [head_dim + 2]; in their order.
GPU_CODE inline MergedSum MergeSums(const float* parts, int64_t stride, int64_t count, int64_t head_dim, int64_t d) {
  MergedSum merged;
  for (int64_t p = 0; p < count; ++p) {
    const float max = parts[p * stride + head_dim];
    merged.max = max > merged.max ? max : merged.max;
  }
  for (int64_t p = 0; p < count; ++p) {
    const float* const part = parts + p * stride;
    const bool sees = part[head_dim] > -std::numeric_limits<float>::infinity();
    const float weight = sees ? std::exp(part[head_dim] - merged.max) : 0;
    merged.sum += part[d] * weight;
    merged.total += part[head_dim + 1] * weight;
  }
  return merged;
}

/// Memory of a block that merges so many parts: of each its weight and its total.
GPU_CODE constexpr int64_t MergeBytes(int64_t parts) { return 2 * parts * static_cast<int64_t>(sizeof(float)); }

/// Puts the parts of a query of divided rows together, as MergeSums does, with what it reads for each number read once.
/// One block for each tile, KV head and query, also those that a tile does not have. memory: MergeBytes().
template <class Block>
GPU_CODE void MergeParts(Block& block, float* memory, const AttentionStep& step, const DividedTile& tile,
                         int64_t kv_head, int64_t query) {
  const int64_t dim = step.kv.head_dim, group = step.group();
  if (query >= tile.num_rows * group) return;
  const float none = -std::numeric_limits<float>::infinity();
  const int64_t stride = step.kv.num_kv_heads * step.queries() * (dim + 2);
  const float* const parts = PartOf(step, tile.first_part, kv_head) + query * (dim + 2);
  float *const weights = memory, *const totals = memory + tile.num_parts;
  const float max = block.template Max<float>(tile.num_parts, none, [&](int64_t p) { return parts[p * stride + dim]; });
  block.ForEach(tile.num_parts, [&](int64_t p) {
    const float* const behind = parts + p * stride + dim;
    weights[p] = behind[0] > none ? std::exp(behind[0] - max) : 0;
    totals[p] = behind[1];
  });
  const int64_t row = tile.first_row + query / group, head = kv_head * group + query % group;
  block.ForEach(dim, [&](int64_t d) {
    float sum = 0, total = 0;
    GPU_UNROLL(8)
    for (int32_t p = 0; p < tile.num_parts; ++p) {
      sum += parts[p * stride + d] * weights[p];
      total += totals[p] * weights[p];
    }
    PutResult(step, (row * step.num_heads + head) * dim + d, sum / total);
  });
}

}  // namespace swiftcache::engine::backend::cuda
