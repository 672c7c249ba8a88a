// SPDX-License-Identifier: Apache-2.0
// Attention by products in emulated blocks, beside the host's block: the same body, whatever lies where.
#include "engine/backend/cuda/attention_products_body.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/native/thread_block.cuh"
#include "tests/fakes/simt/simt.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// A sequence of some rows behind a context, of which one tile attends.
struct Case {
  int64_t head_dim = 64, heads = 4, kv_heads = 2, rows = 5, context = 90;
  int32_t first_token = 0, end_token = 0;  // of the tile; 0: all that it sees
  bool part = false;
};

constexpr int64_t kBlockTokens = 16, kLayer = 1;

class AttentionProductsTest : public testing::Test {
 protected:
  // What the tile leaves, in `out` or as a part, of all KV heads. Blocks lie from `first_slot` on, in steps of `stride`.
  template <class Run>
  static std::vector<float> Attend(const Case& c, int64_t buffers, int64_t first_slot, int64_t stride, Run run) {
    const int64_t tokens = c.context + c.rows, blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
    const int64_t slice = 2 * c.kv_heads * kBlockTokens * c.head_dim;
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<SixteenBytes> memory((first_slot + blocks * stride) * slice * 2 / 16, SixteenBytes{{~0ull, ~0ull}});
    auto* const numbers = reinterpret_cast<Bf16*>(memory.data());
    std::vector<KvBlock> table;
    for (int64_t b = 0; b < blocks; ++b) {
      Bf16* const at = numbers + (first_slot + (blocks - 1 - b) * stride) * slice;
      for (int64_t i = 0; i < slice; ++i) {
        const bool is_there = b * kBlockTokens + i / c.head_dim % kBlockTokens < tokens;  // beyond them it is NaN
        const Bf16 number = ToBf16(normal(random));
        if (is_there) at[i] = number;
      }
      const auto address = reinterpret_cast<uint64_t>(at);
      table.push_back({.slices = {address, address}});
    }
    std::vector<int32_t> sequence(c.rows, 0), position(c.rows), first_block = {0};
    for (int64_t r = 0; r < c.rows; ++r) position[r] = static_cast<int32_t>(c.context + r);
    AttentionStep step = {.tables = {.sequence = sequence.data(),
                                     .position = position.data(),
                                     .first_block = first_block.data(),
                                     .blocks = table.data(),
                                     .num_blocks = blocks},
                          .kv = {c.kv_heads, c.head_dim, kBlockTokens},
                          .num_heads = c.heads,
                          .rows_per_tile = c.rows,
                          .rows_in_memory = c.rows,
                          .kv_buffers = buffers,
                          .layer = kLayer};
    std::vector<float> qkv(c.rows * step.qkv_cols());
    for (float& x : qkv) x = 2 * normal(random);
    std::vector<float> out(c.rows * c.heads * c.head_dim, -1), part(c.kv_heads * step.queries() * (c.head_dim + 2), -1);
    step.qkv = qkv.data();
    step.out = out.data();
    step.partial = part.data();
    const AttentionTile tile = {.num_rows = static_cast<int32_t>(c.rows),
                                .first_token = c.first_token,
                                .end_token = c.end_token == 0 ? static_cast<int32_t>(tokens) : c.end_token,
                                .part = c.part ? 0 : -1};
    run(step, tile, ProductBytes(step.queries_in_memory(), c.head_dim, buffers));
    return c.part ? part : out;
  }
  static std::vector<float> OnHost(const Case& c) {
    return Attend(c, 2, 0, 1, [&](const AttentionStep& step, const AttentionTile& tile, int64_t bytes) {
      struct alignas(128) Line {
        std::byte bytes[128];
      };
      std::vector<Line> memory(bytes / 128 + 1);
      HostBlock block;
      WithProductShape(c.head_dim, StripOf(step.queries()), [&](auto dim, auto rows) {
        for (int64_t head = 0; head < c.kv_heads; ++head) {
          AttendTileByProducts<dim(), rows()>(block, memory[0].bytes, step, tile, head);
        }
      });
    });
  }
  static std::vector<float> Emulated(const Case& c, int64_t buffers, int64_t first_slot, int64_t stride) {
    return Attend(
        c, buffers, first_slot, stride, [&](const AttentionStep& step, const AttentionTile& tile, int64_t bytes) {
          simt::RunGrid({.blocks = {1, static_cast<unsigned>(c.kv_heads)},
                         .threads = 32 * ThreadBlock::kWarps,
                         .memory_bytes = bytes},
                        [&] {
                          ThreadBlock block;
                          WithProductShape(c.head_dim, StripOf(step.queries()), [&](auto dim, auto rows) {
                            AttendTileByProducts<dim(), rows()>(block, simt::BlockMemory(), step, tile, blockIdx.y);
                          });
                        });
        });
  }
};

TEST_F(AttentionProductsTest, WhateverLiesWhereItIsTheHostsAndTheSameBits) {
  const std::vector<Case> cases = {
      {.head_dim = 16, .heads = 1, .kv_heads = 1, .rows = 1, .context = 0},
      {.head_dim = 64, .heads = 8, .kv_heads = 2, .rows = 1, .context = 100},   // a strip of 16
      {.head_dim = 80, .heads = 6, .kv_heads = 2, .rows = 9, .context = 33},    // two strips
      {.head_dim = 128, .heads = 2, .kv_heads = 2, .rows = 48, .context = 0},   // three strips
      {.head_dim = 128, .heads = 8, .kv_heads = 2, .rows = 16, .context = 70},  // four strips
      {.head_dim = 64, .heads = 1, .kv_heads = 1, .rows = 65, .context = 31},   // one more than four strips of 16
      {.head_dim = 128, .heads = 6, .kv_heads = 2, .rows = 42, .context = 10},  // four strips of 32
      {.head_dim = 16, .heads = 1, .kv_heads = 1, .rows = 128, .context = 40},
      {.head_dim = 80, .heads = 11, .kv_heads = 1, .rows = 10, .context = 3},
      {.head_dim = 256, .heads = 8, .kv_heads = 1, .rows = 4, .context = 45},   // wide
      {.head_dim = 256, .heads = 40, .kv_heads = 1, .rows = 1, .context = 64},  // wide, and more than two strips
      {.rows = 32, .context = 200, .first_token = 64, .end_token = 160, .part = true},  // all see all of it
      {.rows = 30, .context = 20, .first_token = 32, .end_token = 45, .part = true},    // some see nothing
      {.rows = 60,
       .context = 20,
       .first_token = 64,
       .end_token = 80,
       .part = true},  // of the second 16 of a strip, some
      {.rows = 3, .context = 128, .first_token = 128, .end_token = 131, .part = true}};  // few tokens
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    const std::vector<float> wanted = OnHost(cases[i]);
    const std::vector<float> found = Emulated(cases[i], 2, 0, 1);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t n = 0; n < found.size(); ++n) {
      if (found[n] != wanted[n]) {  // infinities are equal
        ASSERT_NEAR(found[n], wanted[n], 0.02 + 0.01 * std::abs(wanted[n])) << "at " << n;
      }
    }
    for (const auto& [buffers, first_slot, stride] : {std::tuple{1, 0, 1}, {2, 3, 2}, {1, 1, 3}}) {
      simt::Seed(i * 10 + stride);
      const std::vector<float> again = Emulated(cases[i], buffers, first_slot, stride);
      EXPECT_EQ(std::memcmp(again.data(), found.data(), found.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
