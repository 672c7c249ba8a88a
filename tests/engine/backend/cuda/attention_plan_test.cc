// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace swiftcache::engine::backend::cuda {
namespace {

// Every row sees each position up to its own once, in one tile or in the parts of one.
void ExpectWhole(const std::vector<StepSequence>& sequences, const AttentionPlanOptions& options,
                 const AttentionPlan& plan) {
  std::map<int32_t, std::vector<AttentionTile>> of_row;
  std::set<int32_t> parts;
  for (const AttentionTile& tile : plan.tiles) {
    ASSERT_GT(tile.num_rows, 0);
    ASSERT_LE(tile.num_rows, options.rows_per_tile);
    ASSERT_LT(tile.first_token, tile.end_token);
    for (int32_t r = 0; r < tile.num_rows; ++r) of_row[tile.first_row + r].push_back(tile);
    if (tile.part >= 0) {
      EXPECT_TRUE(parts.insert(tile.part).second) << "part " << tile.part << " is written twice";
    }
  }
  EXPECT_EQ(static_cast<int64_t>(parts.size()), plan.num_parts);
  EXPECT_LE(plan.num_parts, MostParts(options));
  int32_t row = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t r = 0; r < sequences[s].num_rows; ++r, ++row) {
      int32_t seen = 0;
      for (const AttentionTile& tile : of_row[row]) {
        EXPECT_EQ(tile.sequence, static_cast<int32_t>(s));
        EXPECT_EQ(tile.first_token, seen);
        EXPECT_EQ(tile.part < 0, of_row[row].size() == 1);
        seen = tile.end_token;
      }
      EXPECT_GT(seen, sequences[s].context_tokens + r) << "row " << row;
    }
  }
  EXPECT_EQ(of_row.size(), static_cast<size_t>(row));
  for (const DividedTile& divided : plan.divided) {
    for (int32_t p = divided.first_part; p < divided.first_part + divided.num_parts; ++p) EXPECT_EQ(parts.erase(p), 1u);
  }
  EXPECT_TRUE(parts.empty()) << "parts that nobody puts together";
}

TEST(AttentionPlanTest, WhateverTheStepEveryRowSeesItsPositionsOnce) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const AttentionPlanOptions options = {.rows_per_tile = 1 + static_cast<int64_t>(random() % 64),
                                          .num_kv_heads = 1 + static_cast<int64_t>(random() % 8),
                                          .blocks = 1 + static_cast<int64_t>(random() % 264)};
    std::vector<StepSequence> sequences(random() % (i % 4 == 0 ? 60 : 9));
    for (StepSequence& s : sequences) {
      s.num_rows = random() % 3 == 0 ? random() % 300 : random() % 2;
      s.context_tokens = random() % 2 == 0 ? random() % 5000 : random() % 40;
    }
    const AttentionPlan plan = PlanAttention(sequences, options);
    ExpectWhole(sequences, options, plan);
    if (HasFailure()) return;
  }
}

TEST(AttentionPlanTest, ALongSequenceAloneKeepsTheDeviceBusy) {
  const std::vector<StepSequence> one = {{.num_rows = 1, .context_tokens = 32'767}};
  const AttentionPlan plan = PlanAttention(one, {.rows_per_tile = 8, .num_kv_heads = 8, .blocks = 264});
  EXPECT_GE(plan.num_parts, 30);
  EXPECT_EQ(plan.divided.size(), 1u);
}

TEST(AttentionPlanTest, ALongSequenceBesideManyShortOnesIsDivided) {
  std::vector<StepSequence> sequences(40, {.num_rows = 1, .context_tokens = 511});
  sequences[7].context_tokens = 131'071;
  const AttentionPlanOptions options = {.rows_per_tile = 16, .num_kv_heads = 8, .blocks = 264};
  const AttentionPlan plan = PlanAttention(sequences, options);
  ExpectWhole(sequences, options, plan);
  ASSERT_EQ(plan.divided.size(), 1u);
  EXPECT_EQ(plan.divided[0].first_row, 7);
  int32_t longest = 0;
  for (const AttentionTile& tile : plan.tiles) longest = std::max(longest, tile.end_token - tile.first_token);
  EXPECT_LE(longest, 5000);  // of 151,040 tokens, 33 at a time
}

TEST(AttentionPlanTest, ManySequencesAreNotDivided) {
  const std::vector<StepSequence> many(64, {.num_rows = 1, .context_tokens = 4096});
  const AttentionPlan plan = PlanAttention(many, {.rows_per_tile = 8, .num_kv_heads = 8, .blocks = 264});
  EXPECT_EQ(plan.tiles.size(), 64u);
  EXPECT_EQ(plan.num_parts, 0);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
