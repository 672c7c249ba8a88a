// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/attention_plan.h"

#include <algorithm>

#include "common/base/units.h"

namespace swiftcache::engine::backend::cuda {
namespace {

std::vector<AttentionTile> WholeTiles(std::span<const StepSequence> sequences, int64_t rows_per_tile) {
  std::vector<AttentionTile> tiles;
  int64_t row = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t first = 0; first < sequences[s].num_rows; first += rows_per_tile) {
      const int64_t rows = std::min(rows_per_tile, sequences[s].num_rows - first);
      tiles.push_back({.sequence = static_cast<int32_t>(s),
                       .first_row = static_cast<int32_t>(row + first),
                       .num_rows = static_cast<int32_t>(rows),
                       .end_token = static_cast<int32_t>(sequences[s].context_tokens + first + rows)});
    }
    row += sequences[s].num_rows;
  }
  return tiles;
}

int64_t WantedTiles(const AttentionPlanOptions& options) {
  return std::max<int64_t>(1, options.blocks / options.num_kv_heads);
}

}  // namespace

int64_t MostParts(const AttentionPlanOptions& options) { return 2 * WantedTiles(options); }

AttentionPlan PlanAttention(std::span<const StepSequence> sequences, const AttentionPlanOptions& options) {
  AttentionPlan plan;
  const std::vector<AttentionTile> whole = WholeTiles(sequences, options.rows_per_tile);
  int64_t tokens = 0;
  for (const AttentionTile& tile : whole) {
    plan.most_rows = std::max(plan.most_rows, tile.num_rows);
    tokens += tile.end_token;
  }
  // Parts of one length for all, so that long rows have more of them. However many tiles there are, one that is longer
  // than its share of the device would be computed alone when the others are done.
  const int64_t wanted = WantedTiles(options);
  const int64_t part_tokens = CeilDiv(std::max(kPartTokens, CeilDiv(tokens, wanted)), kTileTokens) * kTileTokens;
  for (const AttentionTile& tile : whole) {
    const int64_t parts = CeilDiv(tile.end_token, part_tokens);
    if (parts == 1) {
      plan.tiles.push_back(tile);
      continue;
    }
    plan.divided.push_back({.first_row = tile.first_row,
                            .num_rows = tile.num_rows,
                            .first_part = plan.num_parts,
                            .num_parts = static_cast<int32_t>(parts)});
    for (int64_t p = 0; p < parts; ++p) {
      AttentionTile part = tile;
      part.first_token = static_cast<int32_t>(p * part_tokens);
      part.end_token = static_cast<int32_t>(std::min<int64_t>(tile.end_token, (p + 1) * part_tokens));
      part.part = plan.num_parts++;
      plan.tiles.push_back(part);
    }
  }
  // Those that begin last are short, so that all end at about the same time.
  std::stable_sort(plan.tiles.begin(), plan.tiles.end(), [](const AttentionTile& a, const AttentionTile& b) {
    return a.end_token - a.first_token > b.end_token - b.first_token;
  });
  return plan;
}

}  // namespace swiftcache::engine::backend::cuda
