// SPDX-License-Identifier: Apache-2.0
// The body of paged attention by products of bf16, for tensor cores: queries and probabilities are rounded to bf16, sums
// are f32. For KV in bf16 and heads of a multiple of 16. Tiles, parts and their merging are those of attention_body.h.
// Each warp has 16 queries, a strip; their scores and sums stay in its registers, as in FlashAttention-2
// (https://arxiv.org/abs/2307.08691, section 3). Two warps share the tokens of a strip where a tile has two strips or one.
//
//   WithProductDim(head_dim, [&](auto dim) { AttendTileByProducts<dim()>(block, memory, attention, tile, kv_head); });
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "engine/backend/cuda/attention_body.h"
#include "engine/backend/cuda/block_matrix.h"
#include "engine/backend/cuda/kv_block.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

inline constexpr int64_t kProductTokens = 32;  // of K and V at a time
inline constexpr int64_t kStripRows = 16;      // queries of a warp
inline constexpr int64_t kMostQueries = 64;    // of a tile
inline constexpr int64_t kPadding = 8;         // elements behind each row, so that rows begin in different banks

GPU_CODE constexpr bool HasProducts(int64_t group, int64_t head_dim) {
  return head_dim % 16 == 0 && head_dim <= 256 && group <= kMostQueries;
}

/// Rows of a tile: 64 queries, or 32 of wide heads, whose sums take more room.
GPU_CODE constexpr int64_t RowsPerProductTile(int64_t group, int64_t head_dim) {
  const int64_t rows = (head_dim > 128 ? 32 : kMostQueries) / group;
  return rows < 1 ? 1 : rows;
}

/// f(the number of columns for which registers are set aside). REQUIRES: HasProducts.
template <class F>
auto WithProductDim(int64_t head_dim, F f) {
  if (head_dim <= 64) return f(std::integral_constant<int, 64>());
  if (head_dim <= 128) return f(std::integral_constant<int, 128>());
  return f(std::integral_constant<int, 256>());
}

/// K and V that a block holds at once: with two, one comes in while the other is read.
struct KvBuffer {
  BlockMatrix<Bf16> k, v;  // [kProductTokens][head_dim]
};

/// Memory of a block. Queries are one, two or four strips; those beyond the tile's are zero. When all is computed, what the
/// warps have lies over it: [warps that share a strip][queries][head_dim + 2], as parts do.
struct ProductMemory {
  BlockMatrix<Bf16> q;  // [queries][head_dim]
  KvBuffer first;       // the second, where there are two, lies behind it
  const Bf16** rows;    // [2][kProductTokens]: where the tokens of K, then of V, lie
};

GPU_CODE constexpr int64_t WholeStrips(int64_t queries) {
  return queries <= kStripRows ? kStripRows : queries <= 2 * kStripRows ? 2 * kStripRows : kMostQueries;
}

/// Bytes of it. buffers: 1 or 2.
GPU_CODE constexpr int64_t ProductBytes(int64_t queries, int64_t head_dim, int64_t buffers) {
  const int64_t rows = WholeStrips(queries);
  const int64_t computing = 2 * (rows + buffers * 2 * kProductTokens) * (head_dim + kPadding) + 8 * 2 * kProductTokens;
  const int64_t merging = 4 * (rows > kStripRows ? kMostQueries : 2 * kStripRows) * (head_dim + 2);
  return computing > merging ? computing : merging;
}

template <class T>
GPU_CODE BlockMatrix<T> TakeMatrix(std::byte*& memory, int64_t rows, int64_t cols) {
  const BlockMatrix<T> matrix = {reinterpret_cast<T*>(memory), cols + kPadding};
  memory += rows * matrix.stride * static_cast<int64_t>(sizeof(T));
  return matrix;
}

GPU_CODE inline ProductMemory DivideProductMemory(std::byte* memory, int64_t queries, int64_t head_dim,
                                                  int64_t buffers) {
  ProductMemory m = {};
  m.q = TakeMatrix<Bf16>(memory, WholeStrips(queries), head_dim);
  m.first.k = TakeMatrix<Bf16>(memory, buffers * kProductTokens, head_dim);
  m.first.v = TakeMatrix<Bf16>(memory, buffers * kProductTokens, head_dim);
  m.rows = reinterpret_cast<const Bf16**>(memory);
  return m;
}

/// Added, not looked up: what is looked up has an address, and then no register.
GPU_CODE inline KvBuffer BufferOf(const ProductMemory& m, int64_t buffer) {
  const int64_t begin = buffer * kProductTokens * m.first.k.stride;
  return {{m.first.k.data + begin, m.first.k.stride}, {m.first.v.data + begin, m.first.v.stride}};
}

/// From a row on.
GPU_CODE inline BlockMatrix<const Bf16> From(const BlockMatrix<Bf16>& matrix, int64_t row) {
  return {matrix.data + row * matrix.stride, matrix.stride};
}

template <class Block>
GPU_CODE void LoadProductQueries(Block& block, const ProductMemory& m, const AttentionStep& step,
                                 const AttentionTile& tile, int64_t kv_head) {
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  block.ForEach(WholeStrips(queries) * dim, [&](int64_t i) {
    const int64_t query = i / dim, d = i % dim;
    float value = 0;
    if (query < queries) {
      const float* row = step.qkv + (tile.first_row + query / group) * step.qkv_cols();
      value = row[(kv_head * group + query % group) * dim + d] * scale;
    }
    Store(m.q.data + query * m.q.stride + d, value);
  });
}

/// Begins to bring the tile that starts at position `first` into a buffer. Others may still read the buffer until they
/// call this, too. Copies are of sixteen bytes, on which rows of heads begin wherever a block lies. Where each token lies
/// is found once; what follows adds to it and copies. Whole numbers have 32 bits: a GPU divides those of 64 by a routine,
/// which would cost more than the copies.
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

/// What a warp has of its queries. Of each row, a thread has the sum over its own tokens in `total`.
template <class Block, int kDim>
struct WarpSums {
  typename Block::template Strip<kDim> sums;
  float max[Block::kOwnRows], total[Block::kOwnRows];
  int32_t end[Block::kOwnRows];  // the first position that the query does not see here
};

template <int kDim, class Block>
GPU_CODE void BeginSums(Block& block, WarpSums<Block, kDim>& mine, const AttentionStep& step, const AttentionTile& tile,
                        int64_t first_query) {
  const int64_t group = step.group(), queries = tile.num_rows * group;
  block.Each(mine.sums, [](int own, int col, float& sum) { sum = 0; });
  for (int own = 0; own < Block::kOwnRows; ++own) {
    const int64_t query = first_query + block.RowOf(own);
    mine.max[own] = -std::numeric_limits<float>::infinity();
    mine.total[own] = 0;
    mine.end[own] = 0;
    if (query >= queries) continue;
    const int32_t end = step.tables.position[tile.first_row + query / group] + 1;
    mine.end[own] = end < tile.end_token ? end : tile.end_token;
  }
}

/// Adds kTokens positions from `first` on. q: the strip; k, v: [kTokens][head_dim].
template <int kTokens, int kDim, class Block>
GPU_CODE void AddTokensByProducts(Block& block, WarpSums<Block, kDim>& mine, const BlockMatrix<const Bf16>& q,
                                  const BlockMatrix<const Bf16>& k, const BlockMatrix<const Bf16>& v, int32_t first,
                                  int head_dim) {
  const float none = -std::numeric_limits<float>::infinity(), log2_e = 1.44269504f;
  typename Block::template Strip<kTokens> scores;
  block.template MultiplyStrip<kDim>(scores, q, k, head_dim);
  float largest[Block::kOwnRows], shrink[Block::kOwnRows];
  for (int own = 0; own < Block::kOwnRows; ++own) largest[own] = mine.max[own];
  block.Each(scores, [&](int own, int col, float& score) {
    if (first + col >= mine.end[own]) score = none;
    largest[own] = score > largest[own] ? score : largest[own];
  });
  bool shrinks = false;
  for (int own = 0; own < Block::kOwnRows; ++own) {
    largest[own] = block.MaxOfRow(largest[own]);
    shrink[own] = largest[own] > none ? std::exp2((mine.max[own] - largest[own]) * log2_e) : 1;
    shrinks = shrinks || shrink[own] != 1;
    mine.max[own] = largest[own];
    mine.total[own] *= shrink[own];
  }
  block.Each(scores, [&](int own, int col, float& score) {  // probabilities under the new maximum
    score = largest[own] > none ? std::exp2((score - largest[own]) * log2_e) : 0;
    mine.total[own] += score;
  });
  if (block.AnyOfWarp(shrinks)) {  // maxima settle soon: then nothing shrinks
    block.Each(mine.sums, [&](int own, int col, float& sum) { sum *= shrink[own]; });
  }
  block.AddProduct(mine.sums, scores, v, head_dim);
}

/// Leaves what a warp has in the memory of the block. piece: [kStripRows][head_dim + 2].
template <int kDim, class Block>
GPU_CODE void PutPiece(Block& block, const WarpSums<Block, kDim>& mine, int head_dim, float* piece) {
  block.Each(mine.sums, [&](int own, int col, float sum) {
    if (col < head_dim) piece[block.RowOf(own) * (head_dim + 2) + col] = sum;
  });
  for (int own = 0; own < Block::kOwnRows; ++own) {
    float* const behind = piece + block.RowOf(own) * (head_dim + 2) + head_dim;
    behind[0] = mine.max[own];
    behind[1] = block.SumOfRow(mine.total[own]);
  }
}

/// kShares: warps that share the tokens of a strip.
template <int kDim, int kShares, class Block>
GPU_CODE void AttendStrips(Block& block, std::byte* memory, const AttentionStep& step, const AttentionTile& tile,
                           int64_t kv_head) {
  constexpr int kTokens = static_cast<int>(kProductTokens) / kShares;  // of a warp
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  const int64_t buffers = step.kv_buffers, rows = WholeStrips(queries);
  const ProductMemory m = DivideProductMemory(memory, step.queries_in_memory(), dim, buffers);
  typename Block::template OfWarps<WarpSums<Block, kDim>> sums;
  BeginProductTile(block, m, m.first, step, tile, kv_head, tile.first_token);
  LoadProductQueries(block, m, step, tile, kv_head);
  block.EachWarp(sums, [&](int warp, WarpSums<Block, kDim>& mine) {
    BeginSums(block, mine, step, tile, warp / kShares * kStripRows);
  });
  int64_t here = 0;  // the buffer of the tile that is computed
  for (int64_t first = tile.first_token; first < tile.end_token; first += kProductTokens) {
    const int64_t next = first + kProductTokens, there = buffers == 2 ? 1 - here : 0;
    const bool is_last = next >= tile.end_token, ahead = buffers == 2 && !is_last;
    if (ahead) BeginProductTile(block, m, BufferOf(m, there), step, tile, kv_head, next);
    block.AwaitCopies(ahead);
    const KvBuffer kv = BufferOf(m, here);
    block.EachWarp(sums, [&](int warp, WarpSums<Block, kDim>& mine) {
      const int64_t strip = warp / kShares * kStripRows, share = warp % kShares * kTokens;
      if (strip >= queries) return;
      AddTokensByProducts<kTokens>(block, mine, From(m.q, strip), From(kv.k, share), From(kv.v, share),
                                   static_cast<int32_t>(first + share), static_cast<int>(dim));
    });
    if (buffers == 1 && !is_last) BeginProductTile(block, m, m.first, step, tile, kv_head, next);
    here = there;
  }
  block.Sync();  // all have read what the pieces lie over
  auto* const pieces = reinterpret_cast<float*>(memory);
  block.EachWarp(sums, [&](int warp, WarpSums<Block, kDim>& mine) {
    const int64_t strip = warp / kShares * kStripRows;
    if (strip < queries) {
      PutPiece(block, mine, static_cast<int>(dim), pieces + (warp % kShares * rows + strip) * (dim + 2));
    }
  });
  block.Sync();
  float* const part = tile.part < 0 ? nullptr : PartOf(step, tile.part, kv_head);
  block.ForEach(queries * dim, [&](int64_t i) {
    const int64_t query = i / dim, d = i % dim;
    const MergedSum merged = MergeSums(pieces + query * (dim + 2), rows * (dim + 2), kShares, dim, d);
    if (part == nullptr) {
      float* row = step.out + (tile.first_row + query / group) * step.num_heads * dim;
      row[(kv_head * group + query % group) * dim + d] = merged.sum / merged.total;
      return;
    }
    float* const of_query = part + query * (dim + 2);
    of_query[d] = merged.sum;
    if (d > 0) return;
    of_query[dim] = merged.max;
    of_query[dim + 1] = merged.total;
  });
}

/// memory: [ProductBytes()] of the block, on 16 bytes. kDim: WithProductDim's. REQUIRES: four warps.
template <int kDim, class Block>
GPU_CODE void AttendTileByProducts(Block& block, std::byte* memory, const AttentionStep& step,
                                   const AttentionTile& tile, int64_t kv_head) {
  if (tile.num_rows == 0) return;
  if (tile.num_rows * step.group() <= 2 * kStripRows) {
    AttendStrips<kDim, 2>(block, memory, step, tile, kv_head);
  } else {
    AttendStrips<kDim, 1>(block, memory, step, tile, kv_head);
  }
}

}  // namespace swiftcache::engine::backend::cuda
