// SPDX-License-Identifier: Apache-2.0
// The body of paged attention by products of bf16, for tensor cores: queries and probabilities are rounded to bf16, sums
// are f32. For KV in bf16 and heads of a multiple of 16. Tiles, parts and their merging are those of attention_body.h.
// Each warp has 16 or 32 queries, a strip; their scores and sums stay in its registers, as in FlashAttention-2
// (https://arxiv.org/abs/2307.08691, section 3). Of a tile of 32 queries or fewer two warps share the tokens, each half of
// every 32. Of a larger one, a query has the same bits whether its warp has 16 or 32 and whatever the others are: every sum
// of its own has the same terms in the same order, and tokens that it does not see change nothing.
//
//   WithProductShape(head_dim, strip_rows, [&](auto dim, auto rows) {
//     AttendTileByProducts<dim(), rows()>(block, memory, attention, tile, kv_head);
//   });
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
#include "engine/backend/exp2.h"
#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

inline constexpr int64_t kProductTokens = 32;  // of K and V at a time
inline constexpr int64_t kProductWarps = 4;    // of a block
inline constexpr int64_t kTokensFound = 128;   // at a time: where they lie
inline constexpr int64_t kPadding = 8;         // elements behind each row, so that rows begin in different banks
// Queries of a warp; and of a tile, at most.
inline constexpr int64_t kLowStrip = 16, kTallStrip = 32;
inline constexpr int64_t kLowTile = kProductWarps * kLowStrip, kTallTile = kProductWarps * kTallStrip;

GPU_CODE constexpr bool HasProducts(int64_t group, int64_t head_dim) {
  return head_dim % 16 == 0 && head_dim <= 256 && group <= kLowTile;
}

/// The sums of 32 queries with wider heads do not fit into a warp's registers.
GPU_CODE constexpr bool HasTallStrips(int64_t head_dim) { return head_dim <= 128; }

/// Rows of a tile, at most: 128 queries, or 32 of wide heads.
GPU_CODE constexpr int64_t RowsPerProductTile(int64_t group, int64_t head_dim) {
  const int64_t rows = (HasTallStrips(head_dim) ? kTallTile : 2 * kLowStrip) / group;
  return rows < 1 ? 1 : rows;
}

/// Queries of a warp, where tiles have so many at most. With 16 more blocks fit on a multiprocessor, which hides the time
/// that K and V take to come in: with few queries that is most of it.
GPU_CODE constexpr int64_t StripOf(int64_t queries) { return queries <= kLowTile ? kLowStrip : kTallStrip; }

/// For which registers are set aside. REQUIRES: HasProducts.
GPU_CODE constexpr int64_t ColumnsInRegisters(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/// f(ColumnsInRegisters, the queries of a warp). REQUIRES: HasProducts.
template <class F>
auto WithProductShape(int64_t head_dim, int64_t strip_rows, F f) {
  const auto with_dim = [&](auto dim) {
    if constexpr (HasTallStrips(dim())) {
      if (strip_rows == kTallStrip) return f(dim, std::integral_constant<int, kTallStrip>());
    }
    return f(dim, std::integral_constant<int, kLowStrip>());
  };
  const int64_t columns = ColumnsInRegisters(head_dim);
  if (columns == 64) return with_dim(std::integral_constant<int, 64>());
  if (columns == 128) return with_dim(std::integral_constant<int, 128>());
  return with_dim(std::integral_constant<int, 256>());
}

/// K and V of kProductTokens. A block has up to kMostBuffers of them: while one is read the others come in.
struct KvBuffer {
  BlockMatrix<Bf16> k, v;  // [kProductTokens][head_dim]
};
inline constexpr int64_t kMostBuffers = 3;

/// Memory of a block. Queries are those of one, two or four warps; those beyond the tile's are zero. When all is computed,
/// what the warps have lies over it: [warps that share a strip][queries][head_dim + 2], as parts do.
struct ProductMemory {
  BlockMatrix<Bf16> q;  // [queries][head_dim]
  KvBuffer first;       // the others lie behind it
  const Bf16** keys;    // [kTokensFound]: where K of tokens lies, of some tiles
};

GPU_CODE constexpr int64_t WholeStrips(int64_t queries) {
  int64_t rows = kLowStrip;
  while (rows < queries) rows *= 2;
  return rows;
}

/// Bytes of it, of a step whose tiles have `queries` at most. buffers: 1 to kMostBuffers.
GPU_CODE constexpr int64_t ProductBytes(int64_t queries, int64_t head_dim, int64_t buffers) {
  const int64_t rows = WholeStrips(queries), shared = rows > kLowStrip ? 4 * kLowStrip : 2 * kLowStrip;
  const int64_t computing = 2 * (rows + buffers * 2 * kProductTokens) * (head_dim + kPadding) + 8 * kTokensFound;
  const int64_t merging = 4 * (rows > shared ? rows : shared) * (head_dim + 2);
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
  m.keys = reinterpret_cast<const Bf16**>(memory);
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

/// Whole numbers that are divided have 32 bits from here on: a GPU divides those of 64 by a routine, which would cost more
/// than what they count.
template <int kDim, class Block>
GPU_CODE void LoadProductQueries(Block& block, const ProductMemory& m, const AttentionStep& step,
                                 const AttentionTile& tile, int64_t kv_head) {
  constexpr uint32_t kAtOnce = Bf16Eight::kNumbers, kPieces = kDim / kAtOnce;
  const auto dim = static_cast<uint32_t>(step.kv.head_dim), group = static_cast<uint32_t>(step.group());
  const uint32_t queries = tile.num_rows * group;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  block.ForEachUnsynced(WholeStrips(queries) * kPieces, [&](uint32_t i) {
    const uint32_t query = i / kPieces, d = i % kPieces * kAtOnce;
    if (d >= dim) return;
    Bf16Eight eight;
    if (query < queries) {
      const float* const row = step.qkv + (tile.first_row + query / group) * step.qkv_cols();
      const float* const from = row + (kv_head * group + query % group) * dim + d;
      for (int e = 0; e < Bf16Eight::kNumbers; e += 4) {
        const Four four = LoadFour(from + e);
        eight.pairs[e / 2] = ToBf16Pair(four.x[0] * scale, four.x[1] * scale);
        eight.pairs[e / 2 + 1] = ToBf16Pair(four.x[2] * scale, four.x[3] * scale);
      }
    }
    *reinterpret_cast<Bf16Eight*>(m.q.data + query * m.q.stride + d) = eight;
  });
  block.Sync();
}

/// Finds where K of the tokens from `first` on lies: once for some tiles, since it waits for memory. Tokens beyond the
/// tile's are its last one again, which no query sees there.
template <class Block>
GPU_CODE void FindTokens(Block& block, const ProductMemory& m, const AttentionStep& step, const AttentionTile& tile,
                         int64_t kv_head, int64_t first) {
  const KvBlock* const blocks = step.tables.blocks + step.tables.first_block[tile.sequence];
  block.ForEach(kTokensFound, [&](int64_t i) {
    const int64_t position = first + i < tile.end_token ? first + i : tile.end_token - 1;
    m.keys[i] = KvIn<Bf16>(blocks, step.kv, step.layer, position, kv_head, /*value=*/false);
  });
}

/// Begins to bring the tile that starts at position `first` into a buffer which nobody reads any more. Of a tile behind the
/// last one nothing is brought, but a batch of copies ends all the same. Copies are of sixteen bytes, on which rows of heads
/// begin wherever a block lies.
template <int kDim, class Block>
GPU_CODE void BeginProductTile(Block& block, const ProductMemory& m, const KvBuffer buffer, const AttentionStep& step,
                               const AttentionTile& tile, int64_t kv_head, int64_t first) {
  if (first < tile.end_token) {
    const auto found = static_cast<uint32_t>(first - tile.first_token) % static_cast<uint32_t>(kTokensFound);
    if (found == 0) FindTokens(block, m, step, tile, kv_head, first);
    constexpr uint32_t kAtOnce = sizeof(SixteenBytes) / sizeof(Bf16), kPieces = kDim / kAtOnce;
    const int64_t values = step.kv.num_kv_heads * step.kv.block_tokens * step.kv.head_dim;  // V lies so far behind K
    const auto stride = static_cast<uint32_t>(buffer.k.stride), dim = static_cast<uint32_t>(step.kv.head_dim);
    block.template ForEachGot<kProductTokens * kPieces>(
        [&](uint32_t i) { return m.keys[found + i / kPieces]; },
        [&](uint32_t i, const Bf16* from) {
          const uint32_t row = i / kPieces, d = i % kPieces * kAtOnce;
          if (kDim != dim && d >= dim) return;
          block.BeginCopy(reinterpret_cast<SixteenBytes*>(buffer.k.data + row * stride + d),
                          reinterpret_cast<const SixteenBytes*>(from + d));
          block.BeginCopy(reinterpret_cast<SixteenBytes*>(buffer.v.data + row * stride + d),
                          reinterpret_cast<const SixteenBytes*>(from + values + d));
        });
  }
  block.EndCopies();
}

/// What a warp has: its queries and their sums. Of each row, a thread has the sum over its own tokens in `total`.
template <class Block, int kRows, int kDim>
struct WarpSums {
  using Sums = typename Block::template Strip<kRows, kDim>;
  static constexpr int kOwnRows = Sums::kOwnRows;
  typename Block::template HeldRows<kRows, kDim> queries;
  Sums sums;
  float max[kOwnRows], total[kOwnRows];
  int32_t end[kOwnRows];  // the first position that the query does not see here
  int32_t least_end;      // of them: all see what is before it
};

/// q: [..][head_dim], all of the tile.
template <int kRows, int kDim, class Block>
GPU_CODE void BeginSums(Block& block, WarpSums<Block, kRows, kDim>& mine, const BlockMatrix<Bf16>& q,
                        const AttentionStep& step, const AttentionTile& tile, int64_t first_query) {
  const int64_t group = step.group(), queries = tile.num_rows * group;
  block.HoldRows(mine.queries, From(q, first_query), static_cast<int>(step.kv.head_dim));
  block.Each(mine.sums, [](int own, int col, float& sum) { sum = 0; });
  for (int own = 0; own < mine.kOwnRows; ++own) {
    const int64_t query = first_query + block.RowOf(own);
    mine.max[own] = -std::numeric_limits<float>::infinity();
    mine.total[own] = 0;
    mine.end[own] = 0;
    if (query >= queries) continue;
    const int32_t end = step.tables.position[tile.first_row + query / group] + 1;
    mine.end[own] = end < tile.end_token ? end : tile.end_token;
  }
  mine.least_end = mine.end[0];
  for (int own = 1; own < mine.kOwnRows; ++own) {
    if (mine.end[own] < mine.least_end) mine.least_end = mine.end[own];
  }
}

/// Adds kTokens positions from `first` on. k, v: [kTokens][head_dim].
template <int kTokens, int kRows, int kDim, class Block>
GPU_CODE void AddTokensByProducts(Block& block, WarpSums<Block, kRows, kDim>& mine, const BlockMatrix<const Bf16>& k,
                                  const BlockMatrix<const Bf16>& v, int32_t first, int head_dim) {
  const float none = -std::numeric_limits<float>::infinity(), log2_e = 1.44269504f;
  constexpr int kOwnRows = WarpSums<Block, kRows, kDim>::kOwnRows;
  typename Block::template Strip<kRows, kTokens> scores;
  block.MultiplyStrip(scores, mine.queries, k, head_dim);
  float largest[kOwnRows], shrink[kOwnRows], added[kOwnRows];
  for (int own = 0; own < kOwnRows; ++own) largest[own] = mine.max[own], added[own] = 0;
  if (first + kTokens > mine.least_end) {
    block.Each(scores, [&](int own, int col, float& score) { score = first + col < mine.end[own] ? score : none; });
  }
  block.Each(scores, [&](int own, int col, float score) { largest[own] = std::fmax(largest[own], score); });
  bool shrinks = false;
  float below[kOwnRows];  // exp(score - largest) is exp2(score * log2_e + below)
  for (int own = 0; own < kOwnRows; ++own) {
    largest[own] = block.MaxOfRow(largest[own]);
    below[own] = largest[own] > none ? -largest[own] * log2_e : 0;
    shrink[own] = largest[own] > none ? Exp2((mine.max[own] - largest[own]) * log2_e) : 1;
    shrinks = shrinks || shrink[own] != 1;
    mine.max[own] = largest[own];
  }
  block.Each(scores,
             [&](int own, int col, float& score) {  // probabilities under the new maximum; 0 of what is not seen
               score = Exp2(std::fma(score, log2_e, below[own]));
               added[own] += score;
             });
  // Fused here, so that no compiler fuses it or not as it likes, for 16 rows otherwise than for 32.
  for (int own = 0; own < kOwnRows; ++own) mine.total[own] = std::fma(mine.total[own], shrink[own], added[own]);
  if (block.AnyOfWarp(shrinks)) {  // maxima settle soon: then nothing shrinks
    block.Each(mine.sums, [&](int own, int col, float& sum) { sum *= shrink[own]; });
  }
  block.AddProduct(mine.sums, scores, v, head_dim);
}

/// Leaves what a warp has in the memory of the block. piece: [kRows][head_dim + 2].
template <int kRows, int kDim, class Block>
GPU_CODE void PutPiece(Block& block, const WarpSums<Block, kRows, kDim>& mine, int head_dim, float* piece) {
  block.Each(mine.sums, [&](int own, int col, float sum) {
    if (col < head_dim) piece[block.RowOf(own) * (head_dim + 2) + col] = sum;
  });
  for (int own = 0; own < mine.kOwnRows; ++own) {
    float* const behind = piece + block.RowOf(own) * (head_dim + 2) + head_dim;
    behind[0] = mine.max[own];
    behind[1] = block.SumOfRow(mine.total[own]);
  }
}

/// kRows: queries of a warp. kShares: warps that share their tokens.
template <int kDim, int kRows, int kShares, class Block>
GPU_CODE void AttendStrips(Block& block, std::byte* memory, const AttentionStep& step, const AttentionTile& tile,
                           int64_t kv_head) {
  static_assert(Block::kWarps == kProductWarps);
  constexpr int kTokens = static_cast<int>(kProductTokens) / kShares;  // of a warp
  const int64_t dim = step.kv.head_dim, group = step.group(), queries = tile.num_rows * group;
  const int64_t buffers = step.kv_buffers, rows = WholeStrips(queries);
  const ProductMemory m = DivideProductMemory(memory, step.queries_in_memory(), dim, buffers);
  using Sums = WarpSums<Block, kRows, kDim>;
  typename Block::template OfWarps<Sums> sums;
  const auto begin = [&](int64_t buffer, int64_t first) {
    BeginProductTile<kDim>(block, m, BufferOf(m, buffer), step, tile, kv_head, first);
  };
  const int64_t ahead = buffers > 1 ? buffers - 1 : 1;  // tiles that are on their way when one is awaited
  for (int64_t i = 0; i < ahead; ++i) begin(i, tile.first_token + i * kProductTokens);
  LoadProductQueries<kDim>(block, m, step, tile, kv_head);
  block.EachWarp(sums, [&](int warp, Sums& mine) {
    const int64_t strip = warp / kShares * kRows;
    if (strip < queries) BeginSums(block, mine, m.q, step, tile, strip);
  });
  int64_t here = 0;  // the buffer of the tile that is computed
  for (int64_t first = tile.first_token; first < tile.end_token; first += kProductTokens) {
    block.AwaitCopies(ahead - 1);  // and all have computed the tile before it
    // The next to begin takes the buffer of the one before, where there are several; else this one's.
    const int64_t next = first + ahead * kProductTokens, there = here == 0 ? buffers - 1 : here - 1;
    if (buffers > 1) begin(there, next);
    const KvBuffer kv = BufferOf(m, here);
    block.EachWarp(sums, [&](int warp, Sums& mine) {
      const int64_t strip = warp / kShares * kRows, share = warp % kShares * kTokens;
      if (strip >= queries) return;
      AddTokensByProducts<kTokens>(block, mine, From(kv.k, share), From(kv.v, share),
                                   static_cast<int32_t>(first + share), static_cast<int>(dim));
    });
    if (buffers == 1) {
      block.Sync();
      begin(there, next);
    }
    here = here + 1 == buffers ? 0 : here + 1;
  }
  block.AwaitCopies(0);  // none is on its way, and all have read what the pieces lie over
  auto* const pieces = reinterpret_cast<float*>(memory);
  block.EachWarp(sums, [&](int warp, Sums& mine) {
    const int64_t strip = warp / kShares * kRows;
    if (strip < queries) {
      PutPiece(block, mine, static_cast<int>(dim), pieces + (warp % kShares * rows + strip) * (dim + 2));
    }
  });
  block.Sync();
  float* const part = tile.part < 0 ? nullptr : PartOf(step, tile.part, kv_head);
  constexpr uint32_t kFours = kDim / 4;
  block.ForEachUnsynced(queries * kFours, [&](uint32_t i) {
    const uint32_t query = i / kFours, d = i % kFours * 4;
    if (d >= dim) return;
    MergedSum merged[4];
    for (uint32_t e = 0; e < 4; ++e) {
      merged[e] = MergeSums(pieces + query * (dim + 2), rows * (dim + 2), kShares, dim, d + e);
    }
    if (part == nullptr) {
      const auto heads = static_cast<uint32_t>(group);
      const int64_t row = tile.first_row + query / heads, head = kv_head * group + query % heads;
      Four four;
      for (int e = 0; e < 4; ++e) four.x[e] = merged[e].sum / merged[e].total;
      return PutResult(step, (row * step.num_heads + head) * dim + d, four);
    }
    float* const of_query = part + query * (dim + 2);
    for (uint32_t e = 0; e < 4; ++e) of_query[d + e] = merged[e].sum;
    if (d > 0) return;
    of_query[dim] = merged[0].max;
    of_query[dim + 1] = merged[0].total;
  });
}

/// memory: [ProductBytes()] of the block, on 16 bytes. kDim, kRows: WithProductShape's. REQUIRES: kProductWarps warps.
template <int kDim, int kRows, class Block>
GPU_CODE void AttendTileByProducts(Block& block, std::byte* memory, const AttentionStep& step,
                                   const AttentionTile& tile, int64_t kv_head) {
  const int64_t queries = tile.num_rows * step.group();
  if (queries == 0) return;
  if (queries <= 2 * kLowStrip) {
    AttendStrips<kDim, kLowStrip, 2>(block, memory, step, tile, kv_head);
  } else if (queries <= kLowTile) {
    AttendStrips<kDim, kLowStrip, 1>(block, memory, step, tile, kv_head);
  } else if constexpr (kRows == kTallStrip) {
    AttendStrips<kDim, kTallStrip, 1>(block, memory, step, tile, kv_head);
  }
}

}  // namespace swiftcache::engine::backend::cuda
