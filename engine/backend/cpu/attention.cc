// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/attention.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kQueriesPerItem = 96;  // enough to repay the reading of a tile, few enough to stay in L1 and L2
constexpr int64_t kSerialRows = 4;       // whose rope is done before a second thread would have woken

}  // namespace

PagedAttention::PagedAttention(Options options, const Kernels& kernels, ThreadPool& pool)
    : options_(std::move(options)),
      kernels_(kernels),
      pool_(pool),
      tiles_(options_.kv, kernels),
      bf16_products_(options_.precision == Precision::kBf16 && options_.kv.dtype != KvDtype::kF32 &&
                     kernels.gemm_bf16 != nullptr),
      gemm_(options_.kv.dtype == KvDtype::kF32 ? kernels.gemm_f32
            : bf16_products_                   ? kernels.gemm_bf16
                                               : kernels.gemm_bf16_weights),
      item_rows_(std::max<int64_t>(1, kQueriesPerItem / group())),
      ended_(std::make_unique<std::atomic<int64_t>[]>(max_splits())) {}

int64_t PagedAttention::ScratchFloats() const {
  const int64_t of_query = 3 * dims() + kTileTokens + (dims() + kTileTokens) / 2 + 4;
  const int64_t of_kv = dims() + 2 * tiles_.scratch_bytes() / int64_t{sizeof(float)} + 2 * kTileTokens;
  return queries() * of_query + of_kv;
}

absl::Status PagedAttention::Reserve() {
  const int64_t head_dim = options_.shape.head_dim;
  ASSIGN_OR_RETURN(scratch_, HostMemory::Allocate(pool_.threads() * PadToPanel(ScratchFloats()) * int64_t{4}));
  ASSIGN_OR_RETURN(parts_, HostMemory::Allocate(num_parts() * PartFloats() * int64_t{4}));
  ASSIGN_OR_RETURN(rotations_, HostMemory::Allocate(options_.max_rows * head_dim * int64_t{4}));
  return absl::OkStatus();
}

PagedAttention::Scratch PagedAttention::ScratchOf(int worker) const {
  Scratch s;
  float* at = scratch_.as<float>() + worker * PadToPanel(ScratchFloats());
  const auto take = [&at](int64_t floats) { return std::exchange(at, at + floats); };
  const auto take_bytes = [&take](int64_t bytes) {
    return reinterpret_cast<std::byte*>(take(bytes / int64_t{sizeof(float)}));
  };
  s.kv.k = take_bytes(tiles_.scratch_bytes());
  s.kv.v = take_bytes(tiles_.scratch_bytes());
  s.kv.row = take_bytes(dims() * int64_t{sizeof(float)});
  s.kv.k_scales = take(kTileTokens);
  s.kv.v_scales = take(kTileTokens);
  s.q = take(queries() * dims());
  s.scores = take(queries() * kTileTokens);
  s.q_bf16 = reinterpret_cast<Bf16*>(take(queries() * dims() / 2));
  s.p_bf16 = reinterpret_cast<Bf16*>(take(queries() * kTileTokens / 2));
  for (Sums* sums : {&s.all, &s.part}) *sums = {take(queries() * dims()), take(queries()), take(queries())};
  return s;
}

PagedAttention::Sums PagedAttention::PartOf(int64_t part) const {
  float* at = parts_.as<float>() + part * PartFloats();
  return {at, at + kSplitQueries * dims(), at + kSplitQueries * (dims() + 1)};
}

void PagedAttention::BeginStep(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed) {
  sequences_.clear();
  blocks_.clear();
  streamed_.clear();
  places_.clear();
  items_.clear();
  const int64_t item_rows = ItemRows(sequences);
  for (const StepSequence& s : sequences) {
    CHECK_GE(static_cast<int64_t>(s.blocks.size()) * options_.kv.block_tokens, s.context_tokens + s.num_rows);
    const auto index = static_cast<int64_t>(sequences_.size());
    sequences_.push_back(
        {s.num_rows, s.context_tokens, static_cast<int64_t>(places_.size()), static_cast<int64_t>(blocks_.size())});
    for (const DeviceAddress block : s.blocks) blocks_.push_back(options_.space.Number(block));
    for (int64_t r = 0; r < s.num_rows; ++r) places_.push_back({index, s.context_tokens + r});
    // The last rows first: they have the longest context, and a long item begun last is one that the others wait for.
    for (int64_t r = (CeilDiv(s.num_rows, item_rows) - 1) * item_rows; r >= 0; r -= item_rows) {
      for (int64_t head = 0; head < options_.shape.num_kv_heads; ++head) {
        items_.push_back({index, r, std::min(item_rows, s.num_rows - r), head});
      }
    }
  }
  for (const StreamedBlock& s : streamed) {
    streamed_.push_back({s.block, {options_.space.Number(s.slots[0]), options_.space.Number(s.slots[1])}});
  }
  CHECK_LE(static_cast<int64_t>(places_.size()), options_.max_rows);
  SplitItems();
  PrepareRotations();
}

// Of a short prompt fewer, so that no thread has nothing to do while another has an item.
int64_t PagedAttention::ItemRows(std::span<const StepSequence> sequences) const {
  int64_t rows = item_rows_;
  const auto items = [&] {
    int64_t blocks = 0;
    for (const StepSequence& s : sequences) blocks += CeilDiv(s.num_rows, rows);
    return blocks * options_.shape.num_kv_heads;
  };
  while (rows > 1 && rows * group() > kLeastQueries && items() < kItemsPerThread * pool_.threads())
    rows = CeilDiv(rows, 2);
  return rows;
}

void PagedAttention::SplitItems() {
  splits_.clear();
  if (static_cast<int64_t>(items_.size()) >= max_splits()) return;
  whole_items_.swap(items_);
  items_.clear();
  int64_t parts = 0;
  for (Item item : whole_items_) {
    const int64_t segments = CeilDiv(ContextOf(item), kSegmentTokens);
    if (segments == 1 || item.num_rows * group() > kSplitQueries || parts + segments > num_parts()) {
      items_.push_back(item);
      continue;
    }
    item.split = static_cast<int64_t>(splits_.size());
    splits_.push_back({parts, segments});
    parts += segments;
    for (; item.segment < segments; ++item.segment) items_.push_back(item);
  }
}

void PagedAttention::PrepareRotations() {
  const int64_t half = options_.shape.head_dim / 2;
  pool_.ParallelFor(CeilDiv(places_.size(), 16), [&](int64_t item, int worker) {
    for (int64_t row = item * 16; row < std::min<int64_t>(places_.size(), item * 16 + 16); ++row) {
      float* out = rotations_.as<float>() + row * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        // The angle is an f32 product, as in the models' reference implementation.
        const double angle = static_cast<float>(places_[row].position) * options_.inverse_frequencies[i];
        out[i] = static_cast<float>(std::cos(angle));
        out[half + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

void PagedAttention::PointStreamedAt(int64_t layer) {
  for (const Streamed& s : streamed_) blocks_[s.block] = s.slots[layer % 2] - layer * options_.kv.slice_bytes();
}

void PagedAttention::RopeAndStoreKv(const RopeOp& op) {
  const int64_t rows = places_.size();
  const int64_t chunk = rows <= kSerialRows ? rows : 8;
  pool_.ParallelFor(CeilDiv(rows, std::max<int64_t>(1, chunk)), [&](int64_t item, int worker) {
    for (int64_t row = item * chunk; row < std::min(rows, (item + 1) * chunk); ++row) {
      RopeRow(op, row, worker);
      StoreKvRow(op, row, worker);
    }
  });
}

void PagedAttention::RopeRow(const RopeOp& op, int64_t row, int worker) {
  const AttentionShape& shape = options_.shape;
  float* normed = ScratchOf(worker).q;
  float* head = AsHost(*op.qkv).row(row);
  for (int64_t h = 0; h < shape.num_heads + shape.num_kv_heads; ++h, head += shape.head_dim) {
    const Buffer* norm = h < shape.num_heads ? op.q_norm : op.k_norm;
    if (norm != nullptr) {
      kernels_.rms_norm(head, AsHost(*norm).row(0), shape.head_dim, op.eps, normed);
      std::memcpy(head, normed, shape.head_dim * sizeof(float));
    }
    RopeHead(head, row);
  }
}

// The first half of a head's dimensions is rotated against the second.
void PagedAttention::RopeHead(float* head, int64_t row) const {
  const int64_t half = options_.shape.head_dim / 2;
  const float* cosine = rotations_.as<float>() + row * 2 * half;
  const float* sine = cosine + half;
  for (int64_t i = 0; i < half; ++i) {
    const float x = head[i], y = head[half + i];
    head[i] = x * cosine[i] - y * sine[i];
    head[half + i] = y * cosine[i] + x * sine[i];
  }
}

void PagedAttention::StoreKvRow(const RopeOp& op, int64_t row, int worker) const {
  const int64_t dim = options_.shape.head_dim, kv_heads = options_.shape.num_kv_heads;
  const RowPlace& place = places_[row];
  const float* k = AsHost(*op.qkv).row(row) + options_.shape.num_heads * dim;
  for (int64_t head = 0; head < kv_heads; ++head, k += dim) {
    tiles_.Store(HeadOf(sequences_[place.sequence], op.layer, head), place.position, k, k + kv_heads * dim,
                 ScratchOf(worker).kv);
  }
}

void PagedAttention::Attend(int64_t layer, const HostBuffer& qkv, const HostBuffer& out) {
  PointStreamedAt(layer);
  pool_.ParallelFor(items_.size(),
                    [&](int64_t i, int worker) { AttendItem(layer, items_[i], qkv, out, ScratchOf(worker)); });
}

void PagedAttention::AttendItem(int64_t layer, const Item& item, const HostBuffer& qkv, const HostBuffer& out,
                                Scratch s) {
  KvTiles::Tile next;
  s.next = &next;
  LoadQueries(item, qkv, s);
  Sums all = s.all;
  if (item.split < 0) {
    AttendSegment(layer, item, 0, all, s);
    for (int64_t segment = 1; segment * kSegmentTokens < ContextOf(item); ++segment) {
      AttendSegment(layer, item, segment, s.part, s);
      Join(item, segment, s.part, all);
    }
  } else {
    const Split& split = splits_[item.split];
    all = PartOf(split.first_part);
    AttendSegment(layer, item, item.segment, PartOf(split.first_part + item.segment), s);
    if (ended_[item.split].fetch_add(1, std::memory_order_acq_rel) + 1 < split.segments) return;
    ended_[item.split].store(0, std::memory_order_relaxed);  // for the next layer
    for (int64_t segment = 1; segment < split.segments; ++segment) {
      Join(item, segment, PartOf(split.first_part + segment), all);
    }
  }
  StoreOutput(item, all, out);
}

void PagedAttention::AttendSegment(int64_t layer, const Item& item, int64_t segment, const Sums& sums,
                                   const Scratch& s) const {
  const int64_t queries = item.num_rows * group();
  const KvTiles::Head head = HeadOf(sequences_[item.sequence], layer, item.kv_head);
  std::fill_n(sums.out, queries * dims(), 0.0f);
  std::fill_n(sums.max, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(sums.sum, queries, 0.0f);
  const int64_t end = std::min(ContextOf(item), (segment + 1) * kSegmentTokens);
  const int64_t known = item.split < 0 ? ContextOf(item) : end;  // what this worker will read
  for (int64_t first = segment * kSegmentTokens; first < end; first += kTileTokens) {
    if (s.next->first != first) tiles_.Find(head, first, known, *s.next);
    KvTiles::Tile now = *s.next;
    tiles_.Find(head, first + kTileTokens, known, *s.next);
    tiles_.AskAhead(*s.next);
    tiles_.Load(s.kv, now);
    AttendTile(item, now, sums, s);
  }
}

// Rows that end before the segment are left as they are.
void PagedAttention::Join(const Item& item, int64_t segment, const Sums& part, const Sums& all) const {
  const int64_t position = sequences_[item.sequence].context_tokens + item.first_row;
  for (int64_t i = 0; i < item.num_rows * group(); ++i) {
    if (position + i / group() < segment * kSegmentTokens) continue;
    const float max = std::max(all.max[i], part.max[i]);
    const float of_all = std::exp(all.max[i] - max), of_part = std::exp(part.max[i] - max);
    all.max[i] = max;
    all.sum[i] = all.sum[i] * of_all + part.sum[i] * of_part;
    for (int64_t d = i * dims(); d < (i + 1) * dims(); ++d) all.out[d] = all.out[d] * of_all + part.out[d] * of_part;
  }
}

// Query i of an item is head i % group() of row i / group(), scaled.
void PagedAttention::LoadQueries(const Item& item, const HostBuffer& qkv, const Scratch& s) const {
  const int64_t head_dim = options_.shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  float* q = s.q;
  for (int64_t r = 0; r < item.num_rows; ++r) {
    const float* in =
        qkv.row(sequences_[item.sequence].first_row + item.first_row + r) + item.kv_head * group() * head_dim;
    for (int64_t g = 0; g < group(); ++g, in += head_dim, q += dims()) {
      for (int64_t d = 0; d < head_dim; ++d) q[d] = in[d] * scale;
    }
  }
  // Whole rows at once: the padding between them is zero.
  if (bf16_products_) kernels_.to_bf16(s.q, item.num_rows * group() * dims(), s.q_bf16);
}

void PagedAttention::AttendTile(const Item& item, const KvTiles::Tile& tile, const Sums& sums, const Scratch& s) const {
  const int64_t queries = item.num_rows * group();
  Scores(queries, tile, s);
  const bool int8 = options_.kv.dtype == KvDtype::kInt8;
  const int64_t position = sequences_[item.sequence].context_tokens + item.first_row;
  for (int64_t i = 0; i < queries; ++i) {
    tiles_.AskAhead(*s.next);
    const int64_t valid = std::clamp<int64_t>(position + i / group() + 1 - tile.first, 0, kTileTokens);
    kernels_.softmax_tile({.scores = s.scores + i * kTileTokens,
                           .k_scales = int8 ? s.kv.k_scales : nullptr,
                           .v_scales = int8 ? s.kv.v_scales : nullptr,
                           .valid = valid,
                           .out = sums.out + i * dims(),
                           .out_cols = dims(),
                           .max = sums.max + i,
                           .sum = sums.sum + i});
  }
  if (bf16_products_) kernels_.to_bf16(s.scores, queries * kTileTokens, s.p_bf16);
  WeightedSums(queries, tile, sums, s);
}

// scores = q * K^T, of no meaning beyond the tile's positions.
void PagedAttention::Scores(int64_t queries, const KvTiles::Tile& tile, const Scratch& s) const {
  PanelPiece words;
  PanelGemm gemm;
  gemm.a = bf16_products_ ? static_cast<const void*>(s.q_bf16) : s.q;
  gemm.lda = dims();
  gemm.b = {&words, 1};
  gemm.stride = kPieceTokens;
  gemm.k = tiles_.k_words();
  gemm.ldc = kTileTokens;
  gemm.rows = queries;
  for (int64_t i = 0; i < tile.num_pieces(); i += 2) {
    tiles_.AskAhead(*s.next);
    words = {tile.pieces[i].k, tile.pieces[std::min(i + 1, tile.num_pieces() - 1)].k};
    gemm.c = s.scores + i * kPieceTokens;
    gemm_(gemm);
  }
}

// out += p * V
void PagedAttention::WeightedSums(int64_t queries, const KvTiles::Tile& tile, const Sums& sums,
                                  const Scratch& s) const {
  PanelPiece words[kTilePieces];
  PanelGemm gemm;
  gemm.a = bf16_products_ ? static_cast<const void*>(s.p_bf16) : s.scores;
  gemm.lda = kTileTokens;
  gemm.b = {words, static_cast<size_t>(tile.num_pieces())};
  gemm.stride = tiles_.width();
  gemm.k = tiles_.v_words();
  gemm.ldc = dims();
  gemm.rows = queries;
  gemm.add = true;
  for (int64_t d = 0; d < dims(); d += kPanelCols) {
    tiles_.AskAhead(*s.next);
    const int64_t high = std::min(d + kHalfCols, tiles_.width() - kHalfCols);
    for (int64_t i = 0; i < tile.num_pieces(); ++i) {
      const auto* v = reinterpret_cast<const float*>(tile.pieces[i].v);
      words[i] = {v + d, v + high};
    }
    gemm.c = sums.out + d;
    gemm_(gemm);
  }
}

void PagedAttention::StoreOutput(const Item& item, const Sums& sums, const HostBuffer& out) const {
  const int64_t head_dim = options_.shape.head_dim;
  const float* in = sums.out;
  for (int64_t i = 0; i < item.num_rows * group(); ++i, in += dims()) {
    const int64_t row = sequences_[item.sequence].first_row + item.first_row + i / group();
    float* to = out.row(row) + (item.kv_head * group() + i % group()) * head_dim;
    const float scale = 1.0f / sums.sum[i];
    for (int64_t d = 0; d < head_dim; ++d) to[d] = in[d] * scale;
  }
}

}  // namespace swiftcache::engine::backend::cpu
