// SPDX-License-Identifier: Apache-2.0
// Hands out blocks, knows where each lies and counts who holds it.
//
//   auto blocks = pool.Allocate(3, std::nullopt);         // in the own arena; nothing where fewer are free there
//   BlockRef again = blocks->front().Share(Holder::kCache);
//   RegionId lease = pool.AddRegion(100);
//   std::optional<Move> move = pool.BeginMove(again.id(), lease);
//   ...copy the bytes of move->from to move->to...
//   pool.FinishMove(*move);                               // the block lies in the lease now, its old place is free
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/kv/block.h"
#include "engine/kv/extent_set.h"
#include "engine/kv/place.h"
#include "engine/kv/place_log.h"
#include "engine/kv/room_index.h"

namespace swiftcache::engine::kv {

class BlockPool;

/// One hold on a block; the block is free again when the last hold ends.
/// Thread-safety: none. Ownership: move-only; must not outlive its pool. Errors: none.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept { *this = std::move(other); }
  BlockRef& operator=(BlockRef&& other) noexcept;
  ~BlockRef() { Reset(); }

  /// False: it holds nothing.
  explicit operator bool() const { return pool_ != nullptr; }
  BlockId id() const { return id_; }
  /// REQUIRES: holds a block. A block has at most one hold by the cache.
  BlockRef Share(Holder holder) const;
  /// True where only the cache holds the block.
  bool idle() const;
  /// The block was used at this time, which no other block was. REQUIRES: holds a block.
  void NoteUse(uint64_t time) const;
  /// A prompt found the block. True: for the first time since it was filled. REQUIRES: a sequence's hold.
  bool NoteFound() const;
  /// It is expected that one will. REQUIRES: as above.
  void NoteExpected() const;
  /// A sequence that had it waits to be computed again, or has it again. REQUIRES: as above.
  void NoteAwaited(bool awaited) const;
  /// REQUIRES: holds a block.
  const BlockPool& pool() const { return *pool_; }
  /// Becomes a hold on `other`'s block, which holds the same bytes. If that lies in a lease and this one does not, they
  /// change places first; false where that one moves, or this one does: nothing was changed. REQUIRES: of one pool.
  bool GiveWayTo(const BlockRef& other);

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, BlockId id, Holder holder) : pool_(pool), id_(id), holder_(holder) {}
  void Reset();

  BlockPool* pool_ = nullptr;
  BlockId id_;
  Holder holder_ = Holder::kSequence;
};

/// The places of one region, or of several: the rest of `total` is lent, reserved, or an end of a move (its second
/// place, or both where the block was given up meanwhile).
struct PlaceCounts {
  int64_t total = 0;
  int64_t free = 0;
  int64_t used = 0;    // held by a sequence, perhaps by the cache too
  int64_t cached = 0;  // held by the cache alone

  PlaceCounts& operator+=(const PlaceCounts& other);
  PlaceCounts operator-() const { return {-total, -free, -used, -cached}; }
  friend bool operator==(const PlaceCounts&, const PlaceCounts&) = default;
};

/// Blocks by the time of their last use (BlockRef::NoteUse), the coldest first.
using ByUse = absl::btree_set<std::pair<uint64_t, BlockId>>;

/// Blocks are allocated in the own arena only; leases add regions that blocks can be moved to. The arena's owner may
/// lend runs of its free places to others: an owner in a table changes, whatever the run's length.
///
/// A block that is given up while it moves keeps both places until the move ends. A move to a lease ends where it began
/// if the region drains by then, or a kLocalSequence took hold of the block.
///
/// Counts and orders are kept as blocks change hands, times and places, so that asking for them costs their answer:
/// a change costs O(log) of what there is, whatever the number of leases.
///
/// The arena begins zeroed. Which of its places still are zeroed is known from who had them: a place in use is taken to
/// have been written.
///
/// Thread-safety: none. Ownership: owns the counts, not the bytes. Errors: wrong use is checked. Units: blocks.
class BlockPool {
 public:
  explicit BlockPool(int64_t num_local_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// All or nothing; placed behind `after` where possible, else as low and as adjacent as possible.
  std::optional<std::vector<BlockRef>> Allocate(int64_t count, std::optional<BlockId> after,
                                                Holder holder = Holder::kSequence);
  Place place(BlockId id) const { return blocks_[id.value()].place; }
  Filling filling(BlockId id) const { return blocks_[id.value()].filling; }
  /// Blocks that, held by a sequence, came to lie elsewhere or took another's place in its table.
  const PlaceLog& moved() const { return moved_; }
  bool moving(BlockId id) const { return blocks_[id.value()].to.has_value(); }
  /// What may be moved to a lease: local, committed, and nobody wants it to stay; held by the cache alone, or in use.
  const ByUse& spillable_idle() const { return spillable_idle_; }
  const ByUse& spillable_used() const { return spillable_used_; }
  /// What lies in a lease that does not drain, and is in use.
  const ByUse& promotable() const { return promotable_; }
  bool IsPromotable(BlockId id) const { return OrderOf(blocks_[id.value()]) == &promotable_; }
  uint64_t last_use(BlockId id) const { return blocks_[id.value()].last_use; }
  /// Readable by a new holder of this kind: not in a region that drains, unless that is attachable, and in none for a
  /// kLocalSequence.
  bool MayAttach(BlockId id, Holder holder) const;
  int32_t sequence_holds(BlockId id) const;
  bool cache_holds(BlockId id) const { return blocks_[id.value()].cache; }
  /// Past the largest id in use.
  int64_t id_limit() const { return static_cast<int64_t>(blocks_.size()); }

  /// A lease. `lender`: whose memory it is; nothing: nobody's who lends more.
  RegionId AddRegion(int64_t num_blocks, std::string lender = {});
  /// REQUIRES: no block lies there and no move begins or ends there.
  void RemoveRegion(RegionId id);
  /// From now on nothing is placed there, and nobody attaches what lies there but where it is `attachable`. REQUIRES:
  /// not the own arena.
  void SetDraining(RegionId id, bool attachable = false);
  bool draining(RegionId id) const { return region(id).draining; }
  bool has_regions() const { return !leased_.empty(); }
  /// Of the blocks there that the cache alone holds, and that do not move, how many a prompt has found, or is expected to
  /// (BlockRef::NoteFound, NoteExpected).
  int64_t num_asked_for(RegionId id) const { return region(id).asked_for; }
  bool is_asked_for(BlockId id) const { return blocks_[id.value()].asked_for(); }
  /// The oldest lease that does not drain and has a free place; for what leaves a lease, one of another lender, since
  /// this one may want the next lease back too.
  std::optional<RegionId> RegionWithRoom() const { return rooms_.Oldest(); }
  std::optional<RegionId> RegionWithRoom(RegionId leaving) const {
    return rooms_.OldestOfOthers(region(leaving).lender);
  }
  /// A refuge of what leaves a lease: a lease of another lender that does not drain (the same lender may want its next
  /// lease back, too). Whether there is one, with room or without.
  bool HasRefuge(RegionId leaving) const { return rooms_.HasOthers(region(leaving).lender); }
  bool IsRefuge(RegionId id, RegionId leaving) const {
    return id != kLocalRegion && !region(id).draining && region(id).lender != region(leaving).lender;
  }
  /// Of the blocks in refuges that the cache alone holds, and that do not move, the least recently used. Looks at all.
  std::optional<BlockId> IdleInRefuge(RegionId leaving) const;
  /// Whether a sequence held a block of the region, or a block came to it, since the last call.
  bool TakeUse(RegionId id);
  /// Who lies, or arrives, on each place of a region.
  const std::vector<std::optional<BlockId>>& occupants(RegionId id) const { return region(id).occupants; }

  /// Nothing where the region is full or drains. REQUIRES: the block is held and not moving.
  std::optional<Move> BeginMove(BlockId id, RegionId to);
  /// The bytes have arrived. True: the block lies at `to` now. REQUIRES: BeginMove's, not ended yet.
  bool FinishMove(const Move& move);
  /// They have not: the block stays at `from`. REQUIRES: as for FinishMove.
  void AbortMove(const Move& move);
  /// The blocks, which hold the same bytes, change places. REQUIRES: both held, neither moving.
  void SwapPlaces(BlockId a, BlockId b);
  int64_t num_moves() const { return num_moves_; }
  /// Moves that will free a local place, unless they are aborted or their lease drains.
  int64_t num_outbound_moves() const { return num_outbound_moves_; }
  /// Moves that begin or end in a region, and those that begin there.
  int64_t num_moves_of(RegionId id) const { return region(id).moves; }
  int64_t num_moves_from(RegionId id) const { return region(id).outbound; }

  /// Takes a run of the arena out of use. False: it is not wholly free; nothing was changed.
  bool Lend(PlaceRun run);
  /// Undoes that: the run is free, and what of it was dirty still is. REQUIRES: all of it is lent, and granted to nobody.
  void Unlend(PlaceRun run);
  /// The run, which nobody has any more, stays out of use until TakeBack. REQUIRES: all of it is lent.
  void Withhold(PlaceRun run);
  /// The run is free again, and dirty: it holds another's bytes. REQUIRES: all of it is lent, and withheld or not.
  void TakeBack(PlaceRun run);
  /// The dirty places that Allocate gave out since the last call, for whoever scrubs: those in use still, ascending.
  std::vector<int32_t> TakeDirty();

  /// What may hold bytes in a run of the arena, ascending and never adjacent: places that were in use, or lent and taken
  /// back, since the beginning or their last NoteZeroed. At a cost that grows with the run. REQUIRES: it is in the arena.
  std::vector<PlaceRun> WrittenIn(PlaceRun run) const;
  /// The run holds zeros only, and nobody writes to it before it is granted or taken back. REQUIRES: all of it is lent.
  void NoteZeroed(PlaceRun run);

  /// Takes the lowest free places out of use. REQUIRES: count <= local().free.
  std::vector<int32_t> Reserve(int64_t count);
  /// It is dirty: what was streamed through it may be of a lease that was lost.
  void Unreserve(int32_t index);

  PlaceCounts local() const { return CountsOf(local_); }
  PlaceCounts counts(RegionId id) const { return CountsOf(region(id)); }
  /// All leases; `live` leaves out those that drain.
  const PlaceCounts& leased() const { return leased_sum_; }
  const PlaceCounts& live() const { return live_sum_; }
  /// Free places of the own arena from `first` to `end` - 1; at most `enough`, where it stops counting.
  int64_t CountFree(int32_t first, int32_t end, int64_t enough) const {
    return local_.free.CountWithin(first, end, enough);
  }
  /// Without what is withheld.
  int64_t num_lent() const { return lent_.size() - withheld_.size(); }
  int64_t num_withheld() const { return withheld_.size(); }
  int64_t num_reserved() const { return num_reserved_; }
  int64_t num_spillable() const { return static_cast<int64_t>(spillable_idle_.size() + spillable_used_.size()); }

  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  friend class BlockRef;
  struct Block {
    Place place;
    std::optional<Place> to;  // moving
    int32_t sequences = 0;    // holds of kSequence
    int32_t local_sequences = 0;
    bool cache = false, found = false, expected = false, awaited = false;
    uint64_t last_use = 0;
    Filling filling;

    bool used() const { return sequences + local_sequences > 0; }
    bool idle() const { return cache && !used(); }
    bool held() const { return cache || used(); }
    bool asked_for() const { return found || expected || awaited; }
    bool asked_for_idle() const { return asked_for() && idle() && !to; }
  };
  struct Region {
    explicit Region(int64_t num_blocks, RoomIndex::Lender lender = {})
        : lender(std::move(lender)), free(num_blocks), occupants(num_blocks) {}
    RoomIndex::Lender lender;
    ExtentSet free;       // none once it drains
    int64_t vacated = 0;  // free places since it drains: which ones, nobody asks any more
    std::vector<std::optional<BlockId>> occupants;
    int64_t used = 0, cached = 0, asked_for = 0;  // asked_for: of those cached that do not move
    int64_t moves = 0;                            // that begin or end here
    int64_t outbound = 0;                         // that begin here
    int64_t inbound = 0;                          // that end here and begin in the own arena
    bool draining = false, attachable = true;
    bool touched = false;  // a use of it has ended, or a block has come, since TakeUse
  };

  static PlaceCounts CountsOf(const Region& region);
  Region& region(RegionId id) { return id == kLocalRegion ? local_ : *leased_.at(id); }
  const Region& region(RegionId id) const { return id == kLocalRegion ? local_ : *leased_.at(id); }
  const ByUse* OrderOf(const Block& block) const;
  ByUse* OrderOf(const Block& block) { return const_cast<ByUse*>(std::as_const(*this).OrderOf(block)); }
  void Hold(BlockId id, Holder holder);
  void Drop(BlockId id, Holder holder);
  void List(BlockId id);
  void Unlist(BlockId id);
  void CountLeased(const Region& region, const PlaceCounts& change);
  void CountMove(const Move& move, int64_t sign);
  bool EndMove(const Move& move, bool arrived);
  void Occupy(Place place, BlockId id);
  void Vacate(Place place);
  std::vector<int32_t> TakeLocal(int64_t count, std::optional<int32_t> after);
  int32_t TakePlaceIn(RegionId id);
  void GrowIds();
  void NoteDirty(int32_t index);
  absl::Status CheckBlocks() const;
  absl::Status CheckPlaces(RegionId id, const Region& region) const;
  absl::Status CheckSums() const;

  std::vector<Block> blocks_;
  std::deque<int32_t> free_ids_;  // the next at the end
  Region local_;
  absl::flat_hash_map<RegionId, std::unique_ptr<Region>> leased_;
  int32_t next_region_ = 1;
  RoomIndex rooms_;                                     // of the leases that do not drain
  ByUse spillable_idle_, spillable_used_, promotable_;  // no block that moves
  PlaceCounts leased_sum_, live_sum_;
  PlaceLog moved_;
  ExtentSet lent_, dirty_;
  ExtentSet withheld_;  // of what is lent
  absl::btree_set<int32_t> dirty_taken_;
  std::vector<bool> written_;  // by place of the own arena
  int64_t num_reserved_ = 0, num_moves_ = 0, num_outbound_moves_ = 0;
  uint64_t last_filling_ = 0;
};

}  // namespace swiftcache::engine::kv
