// SPDX-License-Identifier: Apache-2.0
// How the attention of a step is divided among blocks of threads; made once a step, for all layers.
//
//   AttentionPlan plan = PlanAttention(sequences, {.rows_per_tile = 8, .num_kv_heads = 8, .blocks = 264});
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/cuda/attention_body.h"
#include "engine/backend/step.h"

namespace swiftcache::engine::backend::cuda {

struct AttentionPlan {
  std::vector<AttentionTile> tiles;  // the longest first
  std::vector<DividedTile> divided;  // those of several parts
  int32_t num_parts = 0;
  int32_t most_rows = 0;  // of a tile
};

struct AttentionPlanOptions {
  int64_t rows_per_tile = 1;
  int64_t num_kv_heads = 1;  // each tile is so many blocks of threads
  int64_t blocks = 1;        // that keep the device busy: a tile of more than one's share of the tokens is divided
};

/// Every row is in one tile, or in the parts of one. Parts are whole tiles of kTileTokens, and at least kPartTokens long.
/// There are at most max(1, blocks / num_kv_heads) parts beyond one for each tile.
inline constexpr int64_t kPartTokens = 128;
AttentionPlan PlanAttention(std::span<const StepSequence> sequences, const AttentionPlanOptions& options);

/// The most parts that a plan has.
int64_t MostParts(const AttentionPlanOptions& options);

}  // namespace swiftcache::engine::backend::cuda
