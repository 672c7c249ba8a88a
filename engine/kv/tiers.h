// SPDX-License-Identifier: Apache-2.0
// The KV memory of one engine as a borrower sees it: the leases that cold blocks are spilled to, the moves between them
// and the own arena, and the own places through which leases are streamed. Counts and names, no bytes.
//
//   RegionId region = tiers.AddRegion(num_blocks, lender);
//   for (const Move& move : tiers.TakeMoves(8, 8)) ...   // start the copy
//   tiers.FinishMove(move);                              // when it is done, between steps
//   tiers.RegionDraining(region);
//   for (const Move& move : tiers.PlanDrain(region, 8)) ...
//   tiers.DropRegion(region);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/sequence_blocks.h"

namespace swiftcache::engine::kv {

/// Thread-safety: none; the step loop owns it, and calls it between steps. Ownership: KvCache is behind it. Errors:
/// none, what does not fit is an answer. Units: blocks of all layers.
class Tiers {
 public:
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

  virtual ~Tiers() = default;

  /// A lease of so many blocks. `lender`: see BlockPool::AddRegion.
  virtual RegionId AddRegion(int64_t num_blocks, std::string lender) = 0;
  /// Nothing is placed there any more, and nobody attaches what lies there, unless it is `attachable`, which a later call
  /// can end. Moves to it that finish stay at home.
  virtual void RegionDraining(RegionId region, bool attachable = false) = 0;
  /// Up to `max` moves out of it, most worthwhile first: blocks of running sequences, then what counts for WorthSaving,
  /// and of either the most recently used; less recently used blocks elsewhere are evicted for them. REQUIRES: it
  /// drains.
  virtual std::vector<Move> PlanDrain(RegionId region, int64_t max) = 0;
  virtual Readers ReadersOf(RegionId region) const = 0;
  /// Forgets the region and its blocks; what follows from them stays cached behind a hole. Returns how many were lost. REQUIRES: no
  /// table touches it, and no move begins or ends there.
  virtual int64_t DropRegion(RegionId region) = 0;

  /// Moves to start now: spills that somebody waits for or that keep the watermark free (full leases evict for that),
  /// or promotions of blocks in use where local room is plentiful. Each must be ended, by FinishMove or AbortMove; the
  /// source's bytes do not change until then. If copies to a region fail, call RegionDraining before the next
  /// TakeMoves.
  virtual std::vector<Move> TakeMoves(int64_t max_spills, int64_t max_promotions) = 0;
  /// Own places for blocks that leave a lease and are idle: those above the watermark. Below 0: so many blocks will be
  /// spilled first if there is room for them in leases.
  virtual int64_t RoomAtHome() const = 0;
  /// The bytes have arrived (and, from a lease, they were good). False: the block stayed where it was.
  virtual bool FinishMove(const Move& move) = 0;
  virtual void AbortMove(const Move& move) = 0;

  /// How many more leased blocks would be of use now: own memory and leases are nearly full, blocks were evicted since
  /// the last call, or a sequence waits for more than there is. The whole amount, not an addition to the last answer.
  /// `margin`: what donors may take back before the wish is granted. A sequence that needs leases asks for so much
  /// more, at most for as much again as it needs beyond own memory: else each revocation would enlarge the next wish.
  virtual int64_t TakeLeaseWish(int64_t margin) = 0;
  /// How many blocks leases may come to, in all, and own places be reserved then: what does not fit into these and the
  /// rest of the own arena can never run. And how many more may be leased: while there are some, none is evicted ahead of
  /// the need.
  virtual void SetPotentialRegionBlocks(int64_t blocks, int64_t reserved, int64_t leasable) = 0;

  /// How many blocks of leases a step can read; no more are put there. Without a call: any number where leases are
  /// mapped, else none.
  virtual void SetStreamCapacity(int64_t blocks) = 0;
  /// Adds local blocks to reserved(), as SequenceBlocks::Grow would to a table.
  virtual Growth ReserveLocal(int64_t blocks) = 0;
  /// Gives the last `blocks` of them back.
  virtual void ReleaseReserved(int64_t blocks) = 0;
  virtual std::span<const int32_t> reserved() const = 0;

  virtual PlaceCounts local() const = 0;
  virtual PlaceCounts leased_in() const = 0;
  virtual PlaceCounts region(RegionId id) const = 0;
  /// Moves that begin or end in it, and those that begin there.
  virtual int64_t num_moves_of(RegionId id) const = 0;
  virtual int64_t num_moves_from(RegionId id) const = 0;
  /// Of the idle blocks there that do not move, those that are asked for: a prompt has found them; or is expected to,
  /// since their sequence went on from cached blocks, or most of what is computed is asked for again (AskedAgain); or
  /// their sequence waits to be computed again. Without another lender's lease to go to, at most as many as own places
  /// are free above the watermark.
  virtual int64_t WorthSaving(RegionId id) const = 0;
  /// How much of what lies there was used lately, 0 to 2000:
  /// 1000 / places of the lease * sum over its blocks of weight * all / (all + age).
  /// `age`: uses of any block since this one's last, 0 while it is in use. `all`: places of own memory and leases.
  /// `weight`: 2 in use or asked for, else 1. Costs a look at each place.
  virtual int64_t Heat(RegionId id) const = 0;
  /// BlockPool's.
  virtual bool TakeUse(RegionId id) = 0;
};

}  // namespace swiftcache::engine::kv
