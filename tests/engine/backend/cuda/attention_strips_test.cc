// SPDX-License-Identifier: Apache-2.0
// Attention by products with 16 and with 32 queries a warp: on this machine's GPU (tests/gpu), in emulated blocks of
// threads, or with the kernels' bodies on the host.
#include "engine/backend/cuda/attention_products_body.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/synthetic_attention.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

class AttentionStripsTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu_ = OpenTestGpu();
    if (gpu_ == nullptr) GTEST_SKIP() << WhyNoTestGpu();
    kernels_ = gpu_->MakeKernels();
  }
  void TearDown() override {
    kernels_.reset();
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->Faults(), "");
    }
  }
  static void ExpectSameBits(const std::vector<float>& found, const std::vector<float>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(std::isfinite(wanted[i])) << "at " << i;
      ASSERT_EQ(std::memcmp(&found[i], &wanted[i], sizeof(float)), 0) << found[i] << ", " << wanted[i] << " at " << i;
    }
  }
  // Tiles of 128 queries, the same with 16 queries a warp, and tiles of 64 by both kernels.
  void ExpectSameBitsWhateverTheStrip(const AttentionShape& shape, const std::vector<StepSequence>& sequences) {
    SyntheticAttention attention(gpu_->driver(), shape, sequences);
    const AttendOp low = attention.ByTilesOf(kLowTile / attention.group());
    const std::vector<float> wanted = attention.Run(*kernels_, low);
    const AttendOp tall = attention.ByTilesOf(kTallTile / attention.group());
    EXPECT_EQ(tall.strip_rows, kTallStrip);
    ExpectSameBits(attention.Run(*kernels_, tall), wanted);
    AttendOp low_by_tall_kernel = low;
    low_by_tall_kernel.strip_rows = kTallStrip;
    ExpectSameBits(attention.Run(*kernels_, low_by_tall_kernel), wanted);
  }

  std::unique_ptr<TestGpu> gpu_;
  std::unique_ptr<Kernels> kernels_;
};

// Tiles whose last warp has 32 queries, 16 and fewer, or none; rows that end where no strip does.
TEST_F(AttentionStripsTest, AQueryHasTheSameBitsWith16And32QueriesAWarp) {
  for (const int64_t head_dim : {16, 64, 80, 128}) {
    for (const int64_t group : {1, 3, 8, 40}) {
      SCOPED_TRACE(absl::StrCat("heads of ", head_dim, ", groups of ", group));
      const int64_t kv_heads = group == 1 ? 2 : 1, rows = 150 / group + 1;
      ExpectSameBitsWhateverTheStrip(
          {.num_heads = group * kv_heads, .num_kv_heads = kv_heads, .head_dim = head_dim},
          {{.num_rows = rows, .context_tokens = 45}, {.num_rows = 1, .context_tokens = 70}, {.num_rows = 100 / group}});
      if (HasFailure()) return;
    }
  }
}

// As tests/gpu/bench_attention.cc divides them on an H100. Weights are rounded to bf16 in other groups.
TEST_F(AttentionStripsTest, DividedTilesHaveTheSumsOfWholeOnes) {
  SyntheticAttention attention(gpu_->driver(), {.num_heads = 8, .num_kv_heads = 2, .head_dim = 64},
                               {{.num_rows = 256}});
  for (const int64_t queries : {kTallTile, kLowTile}) {
    SCOPED_TRACE(absl::StrCat("tiles of ", queries, " queries"));
    const int64_t rows = queries / attention.group();
    const std::vector<float> wanted = attention.Run(*kernels_, attention.ByTilesOf(rows));
    const AttendOp divided = attention.ByTilesOf(rows, /*blocks=*/264);
    EXPECT_GT(divided.num_divided, 0);
    const std::vector<float> found = attention.Run(*kernels_, divided);
    for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 0.03) << "at " << i;
  }
}

TEST_F(AttentionStripsTest, ResultsAreRoundedForWhoReadsThemSo) {
  SyntheticAttention attention(gpu_->driver(), {.num_heads = 8, .num_kv_heads = 2, .head_dim = 64},
                               {{.num_rows = 70, .context_tokens = 200}});
  for (const int64_t blocks : {1, 264}) {
    AttendOp op = attention.ByTilesOf(kTallTile / attention.group(), blocks);
    EXPECT_EQ(op.num_divided > 0, blocks > 1);
    std::vector<float> wanted = attention.Run(*kernels_, op);
    for (float& x : wanted) x = FromBf16(ToBf16(x));
    op.step.out_number = Number::kBf16;
    ExpectSameBits(attention.Run(*kernels_, op), wanted);
  }
}

TEST_F(AttentionStripsTest, DividedTilesWithoutMemoryToMergeThemAreTheCallersBug) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  SyntheticAttention attention(gpu_->driver(), {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                               {{.num_rows = 256}});
  AttendOp op = attention.ByTilesOf(kLowTile, /*blocks=*/8);
  ASSERT_GT(op.num_divided, 0);
  op.most_parts = 0;
  EXPECT_DEATH((void)kernels_->Attend(attention.stream(), op), "most_parts");
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
