// SPDX-License-Identifier: Apache-2.0
// The KV memory of one engine as the scheduler and the loop see it: the regular cache (RC: full-layer blocks in the own
// arena), the leases that cold blocks are spilled to, and what is lent of the own arena. Counts and names, no bytes.
//
//   KvCache::Attached cached = cache.Attach(table, salt, tokens);
//   if (cache.Grow(table, computed + chunk) == Growth::kNoRoom) ...   // somebody must give way
//   for (int32_t place : cache.TakeDirty()) ...                       // scrub, before the step writes
//   for (const Move& move : cache.TakeMoves(8, 8)) ...                // start the copy
//   cache.FinishMove(move);                                           // when it is done, between steps
//   cache.Commit(table, tokens, computed);                            // after the step
//   cache.Release(table);
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/units.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/move_planner.h"
#include "engine/kv/prefix_tree.h"

namespace swiftcache::engine::kv {

/// The blocks of one sequence, in order of its tokens. Thread-safety: none. Ownership: holds its blocks; must not
/// outlive the KvCache that filled it. Errors: none.
class BlockTable {
 public:
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  BlockId operator[](int64_t i) const { return blocks_[i].id(); }

 private:
  friend class KvCache;
  std::vector<BlockRef> blocks_;
  int64_t committed_ = 0;              // leading blocks that are in the prefix tree
  Holder holder_ = Holder::kSequence;  // of its blocks
  PrefixTree::Pin pin_;                // at block committed_ - 1; declared last: unpinned before the holds end
};

/// kWait: room is on its way, because moves that free it are under way, or TakeMoves or TakeReclaimWish will name what
/// does it. The loop calls both after each plan; until something came of it, asking again gives the same answer.
enum class Growth { kDone, kWait, kNoRoom };

/// New KV is written to the own arena only. Where that runs short: first what is lent is asked back; then the coldest
/// committed blocks are spilled to leases with room; when those are full the least recently used leaves are evicted,
/// wherever they lie; after that there is no room. Without leases, and with nothing lent, it is a plain LRU cache.
///
/// Without prefix caching nothing is committed, hence nothing spilled.
///
/// Thread-safety: none; the step loop owns it. Ownership: owns pool and prefix tree. Errors: none, what does not fit is
/// an answer. Units: as named; blocks of all layers.
class KvCache {
 public:
  struct Options {
    int64_t num_blocks = 0;  // of the own arena
    int64_t block_tokens = 0;
    bool enable_prefix_caching = true;
    bool may_borrow = false;        // TakeLeaseWish ever wishes
    bool leases_are_mapped = true;  // false: only streams and loads read them, so that no block moves between leases
    int64_t max_chunk_tokens = 0;   // of a step that reads leases
    int64_t watermark_blocks = 0;   // local places that spilling keeps free; 0: see watermark()
  };
  explicit KvCache(const Options& options);

  int64_t BlocksFor(int64_t tokens) const { return CeilDiv(tokens, options_.block_tokens); }

  // For sequences.
  /// What Attach would find, without using it.
  PrefixTree::Length Measure(const std::string& salt, std::span<const int32_t> tokens, bool local_only = false) const;
  /// How many blocks of a prompt running sequences hold, which Attach would share: looked up once, then kept up to date
  /// in `seen`. REQUIRES: `seen` is new or of these tokens.
  int64_t BlocksInUse(PrefixTree::InUse& seen, const std::string& salt, std::span<const int32_t> tokens) const;
  struct Attached {
    int64_t tokens = 0;         // all
    int64_t leased_tokens = 0;  // of them, in leases
  };
  /// Gives an empty table the cached blocks of a prefix of `tokens`: whole blocks, and never all tokens, since the last
  /// one's logits have to be computed. local_only: none that lie in a lease, and until Release the table's blocks stay
  /// in the own arena.
  Attached Attach(BlockTable& table, const std::string& salt, std::span<const int32_t> tokens, bool local_only = false);
  /// Makes the table cover `tokens`, all or nothing. `wish_tokens`: how many it would cover if there were room: if it
  /// has to wait, then room for so many is made.
  Growth Grow(BlockTable& table, int64_t tokens, int64_t wish_tokens = 0);
  /// How many of `blocks` more a Grow right after this one gives without waiting; makes room for the rest.
  int64_t Obtain(int64_t blocks);
  /// Puts the full blocks among the first `computed_tokens` of `tokens` into the prefix tree.
  void Commit(BlockTable& table, std::span<const int32_t> tokens, int64_t computed_tokens);
  /// Empties the table; committed blocks stay cached until their room is needed.
  void Release(BlockTable& table);
  Place place(BlockId id) const { return pool_.place(id); }
  /// How many of its blocks lie in leases.
  int64_t LeasedBlocks(const BlockTable& table) const;
  /// Tells which tables have blocks in a region, until the next change: at a cost that grows with the region and not
  /// with the tables.
  class Readers {
   public:
    bool Has(const BlockTable& table) const;

   private:
    friend class KvCache;
    // Blocks in use there, the first of each path, and their numbers in the tables that hold them.
    std::vector<std::pair<int64_t, BlockId>> first_;
  };
  Readers ReadersOf(RegionId region) const;
  bool Touches(const BlockTable& table, RegionId region) const { return ReadersOf(region).Has(table); }

  // For the loop, between steps.
  /// Moves to start now: spills that somebody waits for or that keep the watermark free (full leases evict for that),
  /// or promotions of blocks in use where local room is plentiful. Each must be ended, by FinishMove or AbortMove; the
  /// source's bytes do not change until then. If copies to a region fail, call RegionDraining before the next
  /// TakeMoves.
  std::vector<Move> TakeMoves(int64_t max_spills, int64_t max_promotions);
  /// The bytes have arrived (and, from a lease, they were good). False: the block stayed where it was.
  bool FinishMove(const Move& move) { return pool_.FinishMove(move); }
  void AbortMove(const Move& move) { pool_.AbortMove(move); }
  /// Places of the own arena that hold another tenant's bytes and were allocated since the last call: to be scrubbed
  /// before the next step.
  std::vector<int32_t> TakeDirty() { return pool_.TakeDirty(); }

  // For a borrower.
  RegionId AddRegion(int64_t num_blocks, std::string lender = {}) {
    return pool_.AddRegion(num_blocks, std::move(lender));
  }
  /// Nothing is placed there, and nobody attaches what lies there, any more. Moves to it that finish stay at home.
  void RegionDraining(RegionId region) { pool_.SetDraining(region); }
  /// Up to `max` moves out of it, most worthwhile first: blocks of running sequences, then the most recently used; less
  /// recently used blocks elsewhere are evicted for them. REQUIRES: it drains.
  std::vector<Move> PlanDrain(RegionId region, int64_t max);
  /// Forgets the region, its blocks and all that follow from them; returns how many blocks were lost. REQUIRES: no
  /// table touches it, and no move begins or ends there.
  int64_t DropRegion(RegionId region);
  /// Blocks that it would like to lease beyond what it has: evictions are near or happened since the last call, or a
  /// sequence waits for more than there is. A level, not an increment.
  int64_t TakeLeaseWish();
  /// How many blocks leases may come to, in all: what does not fit into these and the own arena can never run. And how
  /// many more may be leased: while there are some, none is evicted ahead of the need.
  void SetPotentialRegionBlocks(int64_t blocks, int64_t leasable) {
    potential_region_blocks_ = blocks;
    leasable_blocks_ = leasable;
  }
  /// How many blocks of leases a step can read; no more are put there. Without a call: any number where leases are
  /// mapped, else none.
  void SetStreamCapacity(int64_t blocks) { stream_capacity_ = blocks; }
  /// A sequence waits until the cache has this many blocks.
  void NoteNeed(int64_t blocks) { needed_ = std::max(needed_, blocks); }

  // For a donor.
  /// Empties a run of the own arena so that Lend can have it: see MovePlanner::Clear. The moves are from local to
  /// local: copy and finish them, and Lend, before the next plan. Nothing: it cannot be had now.
  std::optional<std::vector<Move>> ClearForLending(int32_t first, int32_t count, int64_t max_moves);
  /// Takes the run out of use, at once whatever its length. False: it is not wholly free.
  bool Lend(int32_t first, int32_t count) { return pool_.Lend(first, count); }
  /// Ends it: the run is free, and dirty. REQUIRES: lent.
  void TakeBack(int32_t first, int32_t count) { pool_.TakeBack(first, count); }
  /// What may hold bytes in a run of the own arena, this engine's or another tenant's, ascending and never adjacent: the
  /// rest is zeroed. KV memory begins so.
  std::vector<PlaceRun> WrittenIn(int32_t first, int32_t count) const { return pool_.WrittenIn(first, count); }
  /// The run was zeroed. It counts as written again from TakeBack on. REQUIRES: lent, and granted to nobody yet.
  void NoteZeroed(int32_t first, int32_t count) { pool_.NoteZeroed(first, count); }
  /// How many lent blocks the calls of Grow and Obtain since the last call wait for: a level, not an increment.
  int64_t TakeReclaimWish();

  // For layer streaming.
  /// Adds local blocks to reserved(), as Grow would to a table.
  Growth ReserveLocal(int64_t blocks);
  /// Gives the last `blocks` of them back.
  void ReleaseReserved(int64_t blocks);
  std::span<const int32_t> reserved() const { return reserved_; }

  int64_t block_tokens() const { return options_.block_tokens; }
  PlaceCounts local() const { return pool_.local(); }
  PlaceCounts leased_in() const { return pool_.leased(); }
  PlaceCounts region(RegionId id) const { return pool_.counts(id); }
  int64_t num_moves_of(RegionId id) const { return pool_.num_moves_of(id); }
  int64_t num_moves() const { return pool_.num_moves(); }
  int64_t num_leased_out() const { return pool_.num_lent(); }
  /// True where an answer may be kWait.
  bool has_tiers() const { return pool_.has_regions() || pool_.num_lent() > 0; }
  /// Local places for sequences, lent ones included: those can be had back.
  int64_t num_usable_local() const { return pool_.local().total - pool_.num_reserved(); }
  /// Places for sequences, now and if leases came to all they may.
  int64_t num_usable() const { return num_usable_local() + num_usable_leased(); }
  int64_t num_potential() const;
  /// Blocks that Grow can still give, now or after a wait.
  int64_t num_available() const;
  /// max(two chunks of max_chunk_tokens, 1/8 of the usable local blocks) or watermark_blocks, and at most half of them.
  int64_t watermark() const;
  int64_t evicted_total() const { return evicted_total_; }

  /// Recounts everything; `tables` are all tables in use. INTERNAL says what does not add up.
  absl::Status CheckInvariants(std::span<const BlockTable* const> tables) const;

 private:
  int64_t num_usable_leased() const { return std::min(pool_.live().total, stream_capacity_); }
  int64_t SpillRoom() const;
  int64_t MatchLimit(std::span<const int32_t> tokens) const;
  Growth MakeFree(int64_t count, int64_t wish);
  Growth EvictLocal(int64_t count);
  Growth MakeFreeAcrossTiers(int64_t count, int64_t wish);
  int64_t EvictForSpills(int64_t places);
  void EvictForWatermark();
  int64_t SpillsWanted() const;
  int64_t PromotionsWanted() const;
  void CountEvicted(int64_t blocks);

  const Options options_;
  BlockPool pool_;
  PrefixTree tree_;
  MovePlanner planner_;
  std::vector<int32_t> reserved_;
  int64_t potential_region_blocks_ = 0, leasable_blocks_ = 0;
  int64_t stream_capacity_;
  // Since they were last taken.
  int64_t reclaim_wish_ = 0, spill_wish_ = 0, needed_ = 0, recently_evicted_ = 0;
  int64_t evicted_total_ = 0;
};

}  // namespace swiftcache::engine::kv
