// SPDX-License-Identifier: Apache-2.0
// For the rows of one step: turns q and k by their positions (rope), stores k and v in the KV blocks, and computes causal
// attention over these blocks.
//
//   attention.BeginStep(sequences, streamed);
//   attention.RopeAndStoreKv(rope);
//   attention.Attend(layer, qkv, out);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/address_space.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/host_buffer.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/kv_tiles.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/thread_pool.h"

namespace swiftcache::engine::backend::cpu {

/// Online softmax over tiles of kTileTokens positions, begun anew for each segment of kSegmentTokens; what the segments
/// summed up is joined in their order. Both are cut at absolute multiples, and K and V are read as stored in the blocks;
/// so a row's arithmetic depends on its position and its sequence's KV alone, whoever computes its segments. Sums are
/// f32. Where the machine multiplies bf16, precision is kBf16 and KV is not f32, queries and probabilities are rounded to
/// bf16 too. KV of int8 enters the products as the whole numbers that are stored; its scales are factors of the scores
/// and of the probabilities.
/// Thread-safety: none. Ownership: borrows the pool; owns scratch. Errors: RESOURCE_EXHAUSTED.
class PagedAttention {
 public:
  struct Options {
    AttentionShape shape;
    KvLayout kv;
    std::vector<float> inverse_frequencies;  // [head_dim / 2], rope
    int64_t max_rows = 0;
    Precision precision = Precision::kBf16;
    AddressSpace space = {};
  };
  PagedAttention(Options options, const Kernels& kernels, ThreadPool& pool);
  absl::Status Reserve();

  /// Borrowed for the call.
  void BeginStep(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed);
  void RopeAndStoreKv(const RopeOp& op);
  void Attend(int64_t layer, const HostBuffer& qkv, const HostBuffer& out);

 private:
  static constexpr int64_t kSegmentTokens = 8 * kTileTokens;
  static constexpr int64_t kItemsPerThread = 4;  // fewer leave a thread without work while another has much
  static constexpr int64_t kPartsPerThread = 128;
  static constexpr int64_t kSplitQueries = 16;  // of an item that may be split, at most
  static constexpr int64_t kLeastQueries = 24;  // of an item, where there is work for fewer threads than there are

  // Rows of one sequence and one KV head that share the tiles of K and V.
  struct Item {
    int64_t sequence, first_row, num_rows, kv_head;  // first_row: within the sequence
    int64_t split = -1, segment = 0;                 // split: of splits_, and the item is that segment alone
  };
  // Rows whose segments are items of their own: whoever ends last joins what all of them summed up.
  struct Split {
    int64_t first_part, segments;
  };
  struct RowPlace {
    int64_t sequence, position;
  };
  struct Sequence {
    int64_t num_rows, context_tokens;
    int64_t first_row, first_block;  // within the step
  };
  struct Streamed {
    int64_t block;
    uint64_t slots[2];
  };
  // What the softmax of some positions sums up; `queries` = rows of an item times the group.
  struct Sums {
    float* out;        // [queries][dims]
    float *max, *sum;  // [queries]
  };
  // One worker's memory; `dims` = PadToPanel(head_dim).
  struct Scratch {
    float* q;       // [queries][dims]
    float* scores;  // [queries][kTileTokens]
    Bf16* q_bf16;   // as q
    Bf16* p_bf16;   // as scores
    KvTiles::Scratch kv;
    Sums all, part;
    KvTiles::Tile* next = nullptr;
  };

  int64_t group() const { return options_.shape.num_heads / options_.shape.num_kv_heads; }
  int64_t dims() const { return PadToPanel(options_.shape.head_dim); }
  int64_t queries() const { return item_rows_ * group(); }
  int64_t max_splits() const { return kItemsPerThread * pool_.threads(); }
  int64_t num_parts() const { return kPartsPerThread * pool_.threads(); }
  int64_t PartFloats() const { return kSplitQueries * (dims() + 2); }
  int64_t ScratchFloats() const;
  Scratch ScratchOf(int worker) const;
  int64_t ContextOf(const Item& item) const {
    return sequences_[item.sequence].context_tokens + item.first_row + item.num_rows;
  }
  Sums PartOf(int64_t part) const;
  int64_t ItemRows(std::span<const StepSequence> sequences) const;
  void SplitItems();
  void PrepareRotations();
  void PointStreamedAt(int64_t layer);
  KvTiles::Head HeadOf(const Sequence& sequence, int64_t layer, int64_t kv_head) const {
    return {blocks_.data() + sequence.first_block, layer, kv_head};
  }
  void RopeRow(const RopeOp& op, int64_t row, int worker);
  void RopeHead(float* head, int64_t row) const;
  void StoreKvRow(const RopeOp& op, int64_t row, int worker) const;
  void AttendItem(int64_t layer, const Item& item, const HostBuffer& qkv, const HostBuffer& out, Scratch s);
  void AttendSegment(int64_t layer, const Item& item, int64_t segment, const Sums& sums, const Scratch& s) const;
  void Join(const Item& item, int64_t segment, const Sums& part, const Sums& all) const;
  void LoadQueries(const Item& item, const HostBuffer& qkv, const Scratch& s) const;
  void AttendTile(const Item& item, const KvTiles::Tile& tile, const Sums& sums, const Scratch& s) const;
  void Scores(int64_t queries, const KvTiles::Tile& tile, const Scratch& s) const;
  void WeightedSums(int64_t queries, const KvTiles::Tile& tile, const Sums& sums, const Scratch& s) const;
  void StoreOutput(const Item& item, const Sums& sums, const HostBuffer& out) const;

  const Options options_;
  const Kernels kernels_;
  ThreadPool& pool_;
  const KvTiles tiles_;
  const bool bf16_products_;
  void (*const gemm_)(const PanelGemm&);
  const int64_t item_rows_;  // at most
  HostMemory scratch_;       // [threads][ScratchFloats()]
  HostMemory parts_;         // [num_parts()] of PartFloats(), Sums of split items
  HostMemory rotations_;     // f32 [max_rows][head_dim]: cosines, then sines
  std::vector<Sequence> sequences_;
  // Of each block of each sequence, a number that plus layer * slice_bytes() is the address of a layer's slice. Numbers,
  // because a streamed block's slots lie anywhere, so that this one may lie before the memory that they are in.
  std::vector<uint64_t> blocks_;
  std::vector<Streamed> streamed_;
  std::vector<RowPlace> places_;  // of each row
  std::vector<Item> items_, whole_items_;
  std::vector<Split> splits_;
  const std::unique_ptr<std::atomic<int64_t>[]> ended_;  // segments of each split, in a layer
};

}  // namespace swiftcache::engine::backend::cpu
