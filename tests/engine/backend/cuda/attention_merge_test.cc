// SPDX-License-Identifier: Apache-2.0
// Parts of divided rows put together: the bits of MergeSums, by the host's block and in emulated blocks.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/attention_body.h"
#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/native/thread_block.cuh"
#include "tests/fakes/simt/simt.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int64_t kHeads = 6, kKvHeads = 2, kGroup = kHeads / kKvHeads, kRowsPerTile = 3, kFirstRow = 2, kFirstPart = 1;

// One divided tile behind other rows and other parts.
class AttentionMergeTest : public testing::Test {
 protected:
  AttentionMergeTest() {
    step_.kv = {.num_kv_heads = kKvHeads};
    step_.num_heads = kHeads;
    step_.rows_per_tile = step_.rows_in_memory = kRowsPerTile;
  }
  // Sums, maxima and totals; one in three queries sees nothing of a part, none sees nothing of all of them.
  void Make(int64_t head_dim, int32_t rows, int32_t parts) {
    step_.kv.head_dim = head_dim;
    tile_ = {.first_row = kFirstRow, .num_rows = rows, .first_part = kFirstPart, .num_parts = parts};
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    partial_.resize((kFirstPart + parts) * kKvHeads * step_.queries() * (head_dim + 2));
    for (float& x : partial_) x = normal(random);
    step_.partial = partial_.data();
    for (int64_t p = kFirstPart + 1; p < kFirstPart + parts; ++p) {
      for (int64_t query = 0; query < kKvHeads * step_.queries(); ++query) {
        float* const max = PartOf(step_, p, 0) + query * (head_dim + 2) + head_dim;
        if (random() % 3 == 0) *max = -std::numeric_limits<float>::infinity();
      }
    }
  }
  // What `merge` leaves of a KV head and query, beside what was there.
  template <class Merge>
  std::vector<float> Merged(Merge merge) {
    std::vector<float> out((kFirstRow + kRowsPerTile + 1) * kHeads * step_.kv.head_dim, -1);
    step_.out = out.data();
    merge();
    return out;
  }
  void MergeEachNumber() {
    const int64_t dim = step_.kv.head_dim, stride = kKvHeads * step_.queries() * (dim + 2);
    for (int64_t i = 0; i < tile_.num_rows * kHeads * dim; ++i) {
      const int64_t row = i / dim / kHeads, head = i / dim % kHeads, query = row * kGroup + head % kGroup;
      const float* const parts = PartOf(step_, kFirstPart, head / kGroup) + query * (dim + 2);
      const MergedSum merged = MergeSums(parts, stride, tile_.num_parts, dim, i % dim);
      static_cast<float*>(step_.out)[((kFirstRow + row) * kHeads + head) * dim + i % dim] = merged.sum / merged.total;
    }
  }

  AttentionStep step_;
  DividedTile tile_;
  std::vector<float> partial_;
};

TEST_F(AttentionMergeTest, EachNumberHasTheBitsOfItsOwnMerging) {
  for (const int64_t dim : {16, 80, 256}) {
    for (const int32_t rows : {1, 3}) {
      for (const int32_t parts : {2, 33, 300}) {
        SCOPED_TRACE(absl::StrCat(dim, " columns, ", rows, " rows, ", parts, " parts"));
        Make(dim, rows, parts);
        const std::vector<float> wanted = Merged([&] { MergeEachNumber(); });
        const std::vector<float> on_host = Merged([&] {
          HostBlock block;
          std::vector<float> memory(MergeBytes(parts) / sizeof(float));
          for (int64_t i = 0; i < kKvHeads * step_.queries(); ++i) {
            MergeParts(block, memory.data(), step_, tile_, i / step_.queries(), i % step_.queries());
          }
        });
        const std::vector<float> emulated = Merged([&] {
          simt::RunGrid({.blocks = {static_cast<unsigned>(kKvHeads), static_cast<unsigned>(step_.queries())},
                         .threads = 128,
                         .memory_bytes = MergeBytes(parts)},
                        [&] {
                          ThreadBlock block;
                          MergeParts(block, reinterpret_cast<float*>(simt::BlockMemory()), step_, tile_, blockIdx.x,
                                     blockIdx.y);
                        });
        });
        EXPECT_EQ(std::memcmp(on_host.data(), wanted.data(), wanted.size() * sizeof(float)), 0);
        EXPECT_EQ(std::memcmp(emulated.data(), wanted.data(), wanted.size() * sizeof(float)), 0);
      }
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
