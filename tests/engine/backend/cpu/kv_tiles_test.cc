// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/kv_tiles.h"

#include <cmath>
#include <cstring>

#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kStoredTokens = 150, kSecondLayer = 1, kKvHeads = 2, kHead = 1;

// Blocks in which all tokens of one head are stored. Memory that was not written is no number.
class StoredHead {
 public:
  StoredHead(KvDtype dtype, int64_t block_tokens, int64_t head_dim)
      : layout_{2, kKvHeads, head_dim, block_tokens, dtype},
        memory_((kStoredTokens / block_tokens + 1) * layout_.block_bytes(), std::byte{0xff}),
        tiles_(layout_, KernelsFor(BestIsa())),
        scratch_memory_(2 * tiles_.scratch_bytes() + PadToPanel(head_dim) * sizeof(float)),
        scales_(2 * kTileTokens),
        k_(RandomVector(kStoredTokens * head_dim + kPanelCols, 1)),
        v_(RandomVector(kStoredTokens * head_dim + kPanelCols, 2)) {
    for (size_t at = 0; at < memory_.size(); at += layout_.block_bytes()) {
      blocks_.push_back(reinterpret_cast<uint64_t>(memory_.data() + at));
    }
    std::byte* const scratch = scratch_memory_.data();
    scratch_ = {.row = scratch + 2 * tiles_.scratch_bytes(),
                .k = scratch,
                .v = scratch + tiles_.scratch_bytes(),
                .k_scales = scales_.data(),
                .v_scales = scales_.data() + kTileTokens};
    for (int64_t t = 0; t < kStoredTokens; ++t) {
      tiles_.Store(head(), t, k_.data() + t * head_dim, v_.data() + t * head_dim, scratch_);
    }
  }
  KvTiles::Tile Load(int64_t first, int64_t end) {
    KvTiles::Tile tile;
    tiles_.Find(head(), first, end, tile);
    for (int i = 0; i < 8; ++i) tiles_.AskAhead(tile);
    tiles_.Load(scratch_, tile);
    return tile;
  }
  // Of a loaded tile. t: within it.
  double K(const KvTiles::Tile& tile, int64_t t, int64_t d) const {
    const std::byte* const piece = tile.pieces[t / kPieceTokens].k;
    return Element(piece, d / pack() * kPieceTokens + t % kPieceTokens, d % pack()) * Scale(scratch_.k_scales, t);
  }
  double V(const KvTiles::Tile& tile, int64_t t, int64_t d) const {
    const std::byte* const piece = tile.pieces[t / kPieceTokens].v;
    return Element(piece, t % kPieceTokens / pack() * tiles_.width() + d, t % pack()) * Scale(scratch_.v_scales, t);
  }
  const std::byte* slice() const { return memory_.data() + kSecondLayer * layout_.slice_bytes(); }
  const KvLayout& layout() const { return layout_; }
  double k(int64_t t, int64_t d) const { return k_[t * layout_.head_dim + d]; }
  double v(int64_t t, int64_t d) const { return v_[t * layout_.head_dim + d]; }

 private:
  KvTiles::Head head() const { return {blocks_.data(), kSecondLayer, kHead}; }
  int64_t pack() const { return layout_.dtype == KvDtype::kF32 ? 1 : 2; }
  double Element(const std::byte* piece, int64_t word, int64_t of_word) const {
    if (pack() == 1) return reinterpret_cast<const float*>(piece)[word];
    return FromBf16(reinterpret_cast<const Bf16*>(piece)[2 * word + of_word]);
  }
  double Scale(const float* scales, int64_t t) const { return layout_.dtype == KvDtype::kInt8 ? scales[t] : 1; }

  KvLayout layout_;
  std::vector<std::byte> memory_;
  std::vector<uint64_t> blocks_;
  KvTiles tiles_;
  std::vector<std::byte> scratch_memory_;
  std::vector<float> scales_, k_, v_;
  KvTiles::Scratch scratch_;
};

TEST(KvTilesTest, TilesHoldWhatWasStoredAndVIsZeroBeyondIt) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kInt8}) {
    const double tolerance = dtype == KvDtype::kF32 ? 0 : dtype == KvDtype::kBf16 ? 0.02 : 0.03;
    for (const auto& [block_tokens, head_dim] : {std::pair{16, 64}, {48, 16}, {80, 48}, {7, 64}, {16, 10}, {1, 24}}) {
      StoredHead stored(dtype, block_tokens, head_dim);
      for (const auto& [first, end] : {std::pair{0, 150}, {64, 150}, {128, 150}, {128, 149}, {64, 65}, {0, 16}}) {
        const KvTiles::Tile tile = stored.Load(first, end);
        ASSERT_EQ(tile.count, std::min<int64_t>(end - first, kTileTokens));
        for (int64_t t = 0; t < tile.num_pieces() * kPieceTokens; ++t) {
          for (int64_t d = 0; d < head_dim; ++d) {
            const bool there = t < tile.count;
            ASSERT_NEAR(stored.V(tile, t, d), there ? stored.v(first + t, d) : 0, there ? tolerance : 0)
                << NameOf(dtype) << " block_tokens " << block_tokens << " head_dim " << head_dim << " t " << t;
            if (!there) continue;  // K is of no meaning
            ASSERT_NEAR(stored.K(tile, t, d), stored.k(first + t, d), tolerance) << NameOf(dtype);
          }
        }
      }
    }
  }
}

// The order of the header's table, element by element.
TEST(KvTilesTest, PairsLieSideBySideInABlock) {
  constexpr int64_t kBlock = 32, kDim = 16;
  const StoredHead stored(KvDtype::kBf16, kBlock, kDim);
  const auto* const k = reinterpret_cast<const Bf16*>(stored.slice()) + kHead * kBlock * kDim;
  const auto* const v = k + kKvHeads * kBlock * kDim;
  for (int64_t t = 0; t < kBlock; ++t) {
    for (int64_t d = 0; d < kDim; ++d) {
      EXPECT_EQ(k[(t / 16 * 16 * (kDim / 2) + d / 2 * 16 + t % 16) * 2 + d % 2], ToBf16(stored.k(t, d)))
          << t << " " << d;
      EXPECT_EQ(v[(t / 2 * kDim + d) * 2 + t % 2], ToBf16(stored.v(t, d))) << t << " " << d;
    }
  }
}

TEST(KvTilesTest, BlocksOfAnotherSizeHoldRows) {
  constexpr int64_t kBlock = 5, kDim = 64;
  const StoredHead stored(KvDtype::kF32, kBlock, kDim);
  const auto* const k = reinterpret_cast<const float*>(stored.slice()) + kHead * kBlock * kDim;
  for (int64_t i = 0; i < kBlock * kDim; ++i) EXPECT_EQ(k[i], stored.k(0, i)) << i;
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
