// SPDX-License-Identifier: Apache-2.0
// The order of K and V within a slice on a CPU, and tiles of both as the products of attention read them.
//
//   tiles.Store({blocks, layer, kv_head}, position, k, v, scratch);
//   tiles.Find({blocks, layer, kv_head}, first, end, tile);
//   tiles.Load(scratch, tile);  // and then multiply by tile.pieces
//
// Of K and of V (kv_layout.h) each KV head has block_tokens * head_dim elements, in words of two (f32: of one):
//
//   | what | order of words                                    | a word of two holds                      |
//   |---|---|---|
//   | K    | [block_tokens / 16][words of head_dim][16 tokens] | dimensions d and d + 1 of a token        |
//   | V    | [words of block_tokens][head_dim]                 | one dimension of tokens t and t + 1      |
//
// So 16 tokens of either are a piece of a panel (kernels.h), and products of f32 and bf16 read it where it lies.
// Where block_tokens or head_dim is no multiple of 16 both are [block_tokens][head_dim], and each tile is put in that
// order when it is loaded, which takes longer than its products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/kv_layout.h"

namespace swiftcache::engine::backend::cpu {

/// Positions of a piece, and pieces of a tile.
inline constexpr int64_t kPieceTokens = kHalfCols, kTilePieces = kTileTokens / kPieceTokens;

/// Thread-safety: immutable. Ownership: borrows blocks and scratch.
class KvTiles {
 public:
  /// One KV head of a sequence in one layer. A block is a number that plus layer * slice_bytes() is the address of its
  /// slice.
  struct Head {
    const uint64_t* blocks = nullptr;
    int64_t layer = 0, kv_head = 0;
  };
  struct Piece {
    const std::byte* k = nullptr;       // [k_words()][16] words
    const std::byte* v = nullptr;       // [v_words()][width()] words; once loaded, zero from `count` on
    const std::byte* scales = nullptr;  // of K, int8: f32 [16]; V's lie scale_bytes() behind
  };
  /// Positions [first, first + count).
  struct Tile {
    Head head;
    int64_t first = -1, count = 0;
    Piece pieces[kTilePieces];  // as stored; loaded, of f32 or bf16. K is of no meaning from `count` on
    int64_t asked_for = 0;      // runs of K and V that AskAhead has asked memory for
    int64_t num_pieces() const { return (count + kPieceTokens - 1) / kPieceTokens; }
  };
  /// One worker's memory.
  struct Scratch {
    std::byte* row = nullptr;                        // [PadToPanel(head_dim)] words
    std::byte *k = nullptr, *v = nullptr;            // scratch_bytes() each
    float *k_scales = nullptr, *v_scales = nullptr;  // [kTileTokens], int8: those of the tile that was loaded
  };

  KvTiles(const KvLayout& layout, const Kernels& kernels);
  int64_t width() const { return width_; }
  int64_t k_words() const { return layout_.head_dim / pack_; }
  int64_t v_words() const { return kPieceTokens / pack_; }
  int64_t scratch_bytes() const { return kTilePieces * piece_bytes(); }

  /// k, v: f32 [head_dim], readable as rows are (kernels.h).
  void Store(const Head& head, int64_t position, const float* k, const float* v, const Scratch& s) const;
  /// The tile from `first` on, of which there are positions up to `end`.
  void Find(const Head& head, int64_t first, int64_t end, Tile& tile) const;
  /// Asks memory for one more of the tile's runs, K's or V's of a piece: all at once they would hold up what is done
  /// meanwhile.
  void AskAhead(Tile& tile) const;
  /// After Find. Then the pieces are what products read, until the next Load with this scratch.
  void Load(const Scratch& s, Tile& tile) const;

 private:
  int64_t piece_bytes() const { return kPieceTokens * width_ * int64_t{sizeof(float)}; }
  int64_t v_bytes() const { return v_words() * width_ * int64_t{sizeof(float)}; }
  std::byte* Slice(const Head& head, int64_t position) const;
  int64_t PartAt(const Head& head, int64_t part) const;
  int64_t ScaleAt(const Head& head, int64_t token) const;
  void StoreRow(const Head& head, int64_t position, int64_t part, const float* in, std::byte* scratch) const;
  void PutK(const std::byte* row, int64_t token, int64_t bytes, std::byte* piece) const;
  void PutV(const std::byte* row, int64_t token, int64_t bytes, std::byte* piece) const;
  void LoadPiece(const Scratch& s, int64_t index, Tile& tile) const;
  void LoadRows(const Scratch& s, Tile& tile) const;
  void LoadScales(const std::byte* scales, int64_t count, const Scratch& s, int64_t first) const;

  const KvLayout layout_;
  const Kernels kernels_;
  const bool in_pieces_;
  const int64_t pack_, width_;  // elements of a word; words between one row of V and the next
};

}  // namespace swiftcache::engine::backend::cpu
