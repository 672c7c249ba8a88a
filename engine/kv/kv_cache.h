// SPDX-License-Identifier: Apache-2.0
// The KV memory of one engine: the regular cache (RC: full-layer blocks in the own arena), the leases that cold blocks
// are spilled to, and what is lent of the own arena. Counts and names, no bytes. Who uses it sees one side of it:
//
//   KvCache cache({.num_blocks = 1000, .block_tokens = 16});
//   Scheduler scheduler(options, &cache);    // as SequenceBlocks: blocks for tokens
//   Tiers& tiers = cache;                    // as a borrower: leases, and moves to them and back
//   LendableBlocks& lendable = cache;        // as a lender
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/units.h"
#include "engine/kv/asked_again.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/lendable_blocks.h"
#include "engine/kv/move_planner.h"
#include "engine/kv/prefix_tree.h"
#include "engine/kv/reuse_meter.h"
#include "engine/kv/sequence_blocks.h"
#include "engine/kv/sharing_worth.h"
#include "engine/kv/tiers.h"

namespace swiftcache::engine::kv {

/// New KV is written to the own arena only. Where that runs short:
///   - while own memory is lent: evicts what is beyond KeepCached, then waits for lent memory (TakeNeed);
///   - else spills the coldest committed blocks to leases with room; where these are full, evicts the least recently
///     used leaves, wherever they lie;
///   - where neither gives room: Growth::kNoRoom.
/// Without leases, and with nothing lent, it is a plain LRU cache.
///
/// Without prefix caching nothing is committed, hence nothing spilled.
///
/// Thread-safety: none; the step loop owns it. Ownership: owns pool and prefix tree. Errors: none, what does not fit is
/// an answer. Units: as named; blocks of all layers.
class KvCache final : public SequenceBlocks, public Tiers, public LendableBlocks {
 public:
  struct Options {
    int64_t num_blocks = 0;  // of the own arena
    int64_t block_tokens = 0;
    bool enable_prefix_caching = true;
    bool may_borrow = false;        // TakeLeaseWish ever wishes
    bool leases_are_mapped = true;  // false: only streams and loads read them, so that no block moves between leases
    bool measures_reuse = false;    // TakeReuse ever has something
    int64_t max_chunk_tokens = 0;   // of a step that reads leases
    int64_t watermark_blocks = 0;   // local places that spilling keeps free; 0: see watermark()
  };
  explicit KvCache(const Options& options);

  // SequenceBlocks. No class derives from this one, so that defaults of arguments mean the same wherever they apply.
  int64_t block_tokens() const override { return options_.block_tokens; }
  int64_t BlocksFor(int64_t tokens) const override { return CeilDiv(tokens, options_.block_tokens); }
  PrefixTree::Length Measure(const std::string& salt, const TokenView& tokens, bool local_only = false) const override;
  int64_t BlocksInUse(PrefixTree::InUse& seen, const std::string& salt, const TokenView& tokens) const override;
  Attached Attach(BlockTable& table, const std::string& salt, const TokenView& tokens,
                  bool local_only = false) override;
  Attached AttachMore(BlockTable& table, const TokenView& tokens, int64_t computed_tokens) override;
  int64_t UnknownTokens(const BlockTable& table, const TokenView& tokens, int64_t computed_tokens,
                        int64_t most) const override;
  Growth Grow(BlockTable& table, int64_t tokens, int64_t wish_tokens = 0) override;
  int64_t Obtain(int64_t blocks) override;
  void Commit(BlockTable& table, const TokenView& tokens, int64_t computed_tokens) override;
  void Release(BlockTable& table) override;
  void ReleaseForNow(BlockTable& table) override;
  void NoteWish(int64_t blocks) override { wish_ = std::max(wish_, blocks); }
  Place place(BlockId id) const override { return pool_.place(id); }
  Filling filling(BlockId id) const override { return pool_.filling(id); }
  void FollowPlaces(const BlockTable& table, PlaceCursor& cursor,
                    absl::FunctionRef<void(int64_t)> changed) const override;
  int64_t HeldByNobodyElse(std::span<const BlockTable* const> tables) const override;
  bool has_tiers() const override { return pool_.has_regions() || pool_.num_lent() > 0; }
  int64_t num_usable_local() const override {
    return pool_.local().total - pool_.num_reserved() - pool_.num_withheld();
  }
  int64_t num_usable() const override { return num_usable_local() + num_usable_leased(); }
  int64_t num_potential() const override;
  int64_t num_available() const override;
  absl::Status CheckInvariants(std::span<const BlockTable* const> tables) const override;

  // Tiers.
  RegionId AddRegion(int64_t num_blocks, std::string lender = {}) override {
    return pool_.AddRegion(num_blocks, std::move(lender));
  }
  void RegionDraining(RegionId region, bool attachable = false) override { pool_.SetDraining(region, attachable); }
  std::vector<Move> PlanDrain(RegionId region, int64_t max) override;
  Readers ReadersOf(RegionId region) const override;
  int64_t DropRegion(RegionId region) override;
  std::vector<Move> TakeMoves(int64_t max_spills, int64_t max_promotions) override;
  int64_t RoomAtHome() const override;
  bool FinishMove(const Move& move) override;
  void AbortMove(const Move& move) override;
  int64_t TakeLeaseWish(int64_t margin) override;
  void SetPotentialRegionBlocks(int64_t blocks, int64_t reserved, int64_t leasable) override {
    potential_region_blocks_ = blocks;
    potential_reserved_ = reserved;
    leasable_blocks_ = leasable;
  }
  void SetStreamCapacity(int64_t blocks) override { stream_capacity_ = blocks; }
  Growth ReserveLocal(int64_t blocks) override;
  void ReleaseReserved(int64_t blocks) override;
  std::span<const int32_t> reserved() const override { return reserved_; }
  PlaceCounts local() const override { return pool_.local(); }
  PlaceCounts leased_in() const override { return pool_.leased(); }
  PlaceCounts region(RegionId id) const override { return pool_.counts(id); }
  int64_t num_moves_of(RegionId id) const override { return pool_.num_moves_of(id); }
  int64_t num_moves_from(RegionId id) const override { return pool_.num_moves_from(id); }
  int64_t WorthSaving(RegionId id) const override;
  int64_t Heat(RegionId id) const override;
  bool TakeUse(RegionId id) override { return pool_.TakeUse(id); }

  // LendableBlocks.
  void KeepCached(int64_t blocks) override { keep_cached_ = blocks; }
  std::optional<std::vector<Move>> ClearForLending(PlaceRun run, int64_t max_moves) override;
  bool Lend(PlaceRun run) override { return pool_.Lend(run); }
  void Unlend(PlaceRun run) override { pool_.Unlend(run); }
  void Withhold(PlaceRun run) override { pool_.Withhold(run); }
  void TakeBack(PlaceRun run) override { pool_.TakeBack(run); }
  std::vector<PlaceRun> WrittenIn(PlaceRun run) const override { return pool_.WrittenIn(run); }
  void NoteZeroed(PlaceRun run) override { pool_.NoteZeroed(run); }
  std::vector<int32_t> TakeDirty() override { return pool_.TakeDirty(); }
  int64_t TakeNeed() override;
  int64_t num_leased_out() const override { return pool_.num_lent(); }
  int64_t num_withheld() const { return pool_.num_withheld(); }

  // For whoever has all of it.
  /// How many of its blocks lie in leases.
  int64_t LeasedBlocks(const BlockTable& table) const { return LeasedAmong(table.blocks_); }
  /// max(two chunks of max_chunk_tokens, 1/8 of the usable local blocks) or watermark_blocks, and at most half of them.
  int64_t watermark() const;
  int64_t evicted_total() const { return evicted_total_; }
  /// Of the prompts that were attached since the last call.
  Reuse TakeReuse() { return meter_ ? meter_->Take() : Reuse(); }
  const SharingWorth& worth() const { return worth_; }

 private:
  int64_t num_usable_leased() const { return std::min(pool_.live().total, stream_capacity_); }
  int64_t SpillRoom() const;
  int64_t MatchLimit(const TokenView& tokens) const;
  Growth MakeFree(int64_t count, int64_t wish);
  void EvictWorthless(int64_t count);
  int64_t LeasedAmong(std::span<const BlockRef> blocks) const;
  Growth EvictLocal(int64_t count);
  Growth MakeFreeAcrossTiers(int64_t count, int64_t wish);
  int64_t EvictForSpills(int64_t places);
  void EvictForWatermark();
  int64_t SpillsWanted() const;
  int64_t PromotionsWanted() const;
  void CountEvicted(bool for_loan = false);
  int64_t NoteGone(ReuseMeter::Gone why);
  void NoteFound(BlockTable& table, int64_t first);
  void CountWorth(const BlockTable& table, const ReuseMeter::LookedUp& seen);

  const Options options_;
  BlockPool pool_;
  PrefixTree tree_;
  MovePlanner planner_;
  std::optional<ReuseMeter> meter_;   // none: nobody asks
  std::vector<uint64_t> reuse_keys_;  // its, of committed blocks by id
  SharingWorth worth_;
  std::vector<int32_t> reserved_;
  uint64_t fillings_ = 0;  // of tables
  int64_t potential_region_blocks_ = 0, potential_reserved_ = 0, leasable_blocks_ = 0;
  int64_t stream_capacity_;
  // Since they were last taken.
  int64_t need_ = 0, reserve_need_ = 0, spill_wish_ = 0, wish_ = 0, recently_evicted_ = 0;
  int64_t evicted_total_ = 0;
  std::optional<int64_t> keep_cached_;
  AskedAgain asked_again_;
};

}  // namespace swiftcache::engine::kv
