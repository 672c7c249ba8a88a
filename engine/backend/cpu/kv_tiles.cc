// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/kv_tiles.h"

#include <algorithm>
#include <cstring>

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kWordBytes = 4;
constexpr int kSecondCache = 2;  // as a prefetch names it

// n elements of kBytes that lie side by side, to places that are `stride` bytes apart.
template <int64_t kBytes>
void Spread(const std::byte* from, int64_t n, std::byte* to, int64_t stride) {
  for (int64_t i = 0; i < n; ++i, from += kBytes, to += stride) std::memcpy(to, from, kBytes);
}

void Spread(int64_t bytes, const std::byte* from, int64_t n, std::byte* to, int64_t stride) {
  bytes == 4   ? Spread<4>(from, n, to, stride)
  : bytes == 2 ? Spread<2>(from, n, to, stride)
               : Spread<1>(from, n, to, stride);
}

}  // namespace

KvTiles::KvTiles(const KvLayout& layout, const Kernels& kernels)
    : layout_(layout),
      kernels_(kernels),
      in_pieces_(layout.block_tokens % kPieceTokens == 0 && layout.head_dim % kHalfCols == 0),
      pack_(layout.dtype == KvDtype::kF32 ? 1 : 2),
      width_((layout.head_dim + kHalfCols - 1) / kHalfCols * kHalfCols) {}

std::byte* KvTiles::Slice(const Head& head, int64_t position) const {
  return reinterpret_cast<std::byte*>(head.blocks[position / layout_.block_tokens] +
                                      head.layer * layout_.slice_bytes());
}

int64_t KvTiles::PartAt(const Head& head, int64_t part) const {
  return part * layout_.part_bytes() + head.kv_head * layout_.block_tokens * layout_.row_bytes();
}

// Of K; V's lies scale_bytes() behind.
int64_t KvTiles::ScaleAt(const Head& head, int64_t token) const {
  return 2 * layout_.part_bytes() + (head.kv_head * layout_.block_tokens + token) * int64_t{sizeof(float)};
}

void KvTiles::Store(const Head& head, int64_t position, const float* k, const float* v, const Scratch& s) const {
  StoreRow(head, position, 0, k, s.row);
  StoreRow(head, position, 1, v, s.row);
}

void KvTiles::StoreRow(const Head& head, int64_t position, int64_t part, const float* in, std::byte* scratch) const {
  const int64_t token = position % layout_.block_tokens, bytes = BytesOf(layout_.dtype);
  std::byte* const slice = Slice(head, position);
  const std::byte* row = scratch;
  if (layout_.dtype == KvDtype::kF32) {
    row = reinterpret_cast<const std::byte*>(in);
  } else if (layout_.dtype == KvDtype::kBf16) {
    auto* const to = reinterpret_cast<Bf16*>(scratch);
    if (layout_.head_dim % kPanelCols == 0) {
      kernels_.to_bf16(in, layout_.head_dim, to);
    } else {  // which would read on, where another worker may be writing
      std::transform(in, in + layout_.head_dim, to, ToBf16);
    }
  } else {
    const float scale = kernels_.quantize(in, layout_.head_dim, reinterpret_cast<int8_t*>(scratch));
    std::memcpy(slice + ScaleAt(head, token) + part * layout_.scale_bytes(), &scale, sizeof(float));
  }
  std::byte* const out = slice + PartAt(head, part);
  if (!in_pieces_) {
    std::memcpy(out + token * layout_.row_bytes(), row, layout_.row_bytes());
  } else {
    std::byte* const piece = out + token / kPieceTokens * kPieceTokens * layout_.row_bytes();
    part == 0 ? PutK(row, token % kPieceTokens, bytes, piece) : PutV(row, token % kPieceTokens, bytes, piece);
  }
}

// One token's row, of elements of so many bytes, into its place in a piece.
void KvTiles::PutK(const std::byte* row, int64_t token, int64_t bytes, std::byte* piece) const {
  const int64_t word = pack_ * bytes;
  Spread(word, row, layout_.head_dim / pack_, piece + token * word, kPieceTokens * word);
}

void KvTiles::PutV(const std::byte* row, int64_t token, int64_t bytes, std::byte* piece) const {
  const int64_t word = pack_ * bytes;
  Spread(bytes, row, layout_.head_dim, piece + token / pack_ * width_ * word + token % pack_ * bytes, word);
}

void KvTiles::Find(const Head& head, int64_t first, int64_t end, Tile& tile) const {
  tile.head = head;
  tile.first = first;
  tile.count = std::clamp<int64_t>(end - first, 0, kTileTokens);
  tile.asked_for = 0;
  for (int64_t i = 0; in_pieces_ && i < tile.num_pieces(); ++i) {
    const int64_t position = first + i * kPieceTokens, token = position % layout_.block_tokens;
    const std::byte* const slice = Slice(head, position);
    const std::byte* const k = slice + PartAt(head, 0) + token * layout_.row_bytes();
    tile.pieces[i] = {k, k + layout_.part_bytes(), slice + ScaleAt(head, token)};
  }
}

// The processor guesses the next lines of a run, but too late, and not those of the next block. Into the second cache,
// which was mostly quicker than into the first: there blocks that lie a multiple of a page apart share sets.
void KvTiles::AskAhead(Tile& tile) const {
  if (!in_pieces_ || tile.asked_for >= 2 * tile.num_pieces()) return;
  const bool of_k = tile.asked_for < tile.num_pieces();  // which is read first
  const Piece& piece = tile.pieces[of_k ? tile.asked_for : tile.asked_for - tile.num_pieces()];
  const std::byte* const run = of_k ? piece.k : piece.v;
  for (int64_t at = 0; at < kPieceTokens * layout_.row_bytes(); at += kCacheLineBytes)
    __builtin_prefetch(run + at, 0, kSecondCache);
  if (layout_.dtype == KvDtype::kInt8) __builtin_prefetch(piece.scales + (of_k ? 0 : layout_.scale_bytes()));
  ++tile.asked_for;
}

void KvTiles::Load(const Scratch& s, Tile& tile) const {
  if (layout_.dtype == KvDtype::kInt8) {
    std::fill_n(s.k_scales, kTileTokens, 0.0f);
    std::fill_n(s.v_scales, kTileTokens, 0.0f);
  }
  if (!in_pieces_) return LoadRows(s, tile);
  for (int64_t i = 0; i < tile.num_pieces(); ++i) LoadPiece(s, i, tile);
}

void KvTiles::LoadPiece(const Scratch& s, int64_t index, Tile& tile) const {
  Piece& piece = tile.pieces[index];
  const int64_t first = index * kPieceTokens, there = std::min(kPieceTokens, tile.count - first);
  std::byte* const v = s.v + index * piece_bytes();
  if (layout_.dtype == KvDtype::kInt8) {
    LoadScales(piece.scales, there, s, first);
    Bf16* const k = reinterpret_cast<Bf16*>(s.k + index * piece_bytes());
    kernels_.int8_to_bf16(reinterpret_cast<const int8_t*>(piece.k), kPieceTokens * width_, k);
    kernels_.int8_to_bf16(reinterpret_cast<const int8_t*>(piece.v), kPieceTokens * width_, reinterpret_cast<Bf16*>(v));
    piece.k = reinterpret_cast<const std::byte*>(k);
    piece.v = v;
  }
  if (there == kPieceTokens) return;
  // What was never written may be no number, which times a probability of zero is none either.
  if (piece.v != v) std::memcpy(v, piece.v, v_bytes());
  piece.v = v;
  std::byte* words = v + there / pack_ * width_ * kWordBytes;
  if (there % pack_ != 0) {
    for (const std::byte* const end = words + width_ * kWordBytes; words != end; words += kWordBytes) {
      std::fill_n(words + kWordBytes / 2, kWordBytes / 2, std::byte{});
    }
  }
  std::fill(words, v + v_bytes(), std::byte{});
}

void KvTiles::LoadRows(const Scratch& s, Tile& tile) const {
  const bool int8 = layout_.dtype == KvDtype::kInt8;
  const int64_t bytes = int8 ? sizeof(Bf16) : BytesOf(layout_.dtype);
  std::fill_n(s.v, scratch_bytes(), std::byte{});
  for (int64_t i = 0; i < kTilePieces; ++i) tile.pieces[i] = {s.k + i * piece_bytes(), s.v + i * piece_bytes()};
  for (int64_t t = 0; t < tile.count; ++t) {
    const int64_t token = (tile.first + t) % layout_.block_tokens, at = t / kPieceTokens * piece_bytes();
    const std::byte* const slice = Slice(tile.head, tile.first + t);
    const auto row_of = [&](int64_t part) {
      const std::byte* const row = slice + PartAt(tile.head, part) + token * layout_.row_bytes();
      if (!int8) return row;
      kernels_.int8_to_bf16(reinterpret_cast<const int8_t*>(row), layout_.head_dim, reinterpret_cast<Bf16*>(s.row));
      return static_cast<const std::byte*>(s.row);
    };
    PutK(row_of(0), t % kPieceTokens, bytes, s.k + at);
    PutV(row_of(1), t % kPieceTokens, bytes, s.v + at);
    if (int8) LoadScales(slice + ScaleAt(tile.head, token), 1, s, t);
  }
}

void KvTiles::LoadScales(const std::byte* scales, int64_t count, const Scratch& s, int64_t first) const {
  std::memcpy(s.k_scales + first, scales, count * sizeof(float));
  std::memcpy(s.v_scales + first, scales + layout_.scale_bytes(), count * sizeof(float));
}

}  // namespace swiftcache::engine::backend::cpu
