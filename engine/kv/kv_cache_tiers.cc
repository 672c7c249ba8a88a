// SPDX-License-Identifier: Apache-2.0
// What lies in leases, what moves to them and back, and what is lent.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {

// What lies in a lease is in the prefix tree, so a table that holds it has it at its depth, with all that leads to it.
KvCache::Readers KvCache::ReadersOf(RegionId region) const {
  Readers readers;
  if (pool_.counts(region).used == 0) return readers;
  const auto in_use_there = [&](BlockId id) {
    return pool_.place(id).region == region && pool_.sequence_holds(id) > 0;
  };
  for (const std::optional<BlockId>& block : pool_.occupants(region)) {
    if (!block || !in_use_there(*block)) continue;
    CHECK(tree_.Contains(*block)) << "block " << *block << " is in use in a lease, and nobody can find it";
    const std::optional<BlockId> parent = tree_.ParentOf(*block);
    if (!parent || !in_use_there(*parent)) readers.first_.emplace_back(tree_.IndexOf(*block), *block);
  }
  return readers;
}

std::vector<Move> KvCache::TakeMoves(int64_t max_spills, int64_t max_promotions) {
  if (!pool_.has_regions()) return {};
  EvictForWatermark();
  std::vector<Move> moves;
  if (const int64_t spills = std::min({max_spills, SpillsWanted(), SpillRoom()}); spills > 0) {
    moves = planner_.Spill(spills);
  } else if (const int64_t promotions = std::min(max_promotions, PromotionsWanted()); promotions > 0) {
    moves = planner_.Promote(promotions);
  }
  spill_wish_ = 0;
  return moves;
}

bool KvCache::FinishMove(const Move& move) {
  const bool arrived = pool_.FinishMove(move);
  tree_.NoteMove(move.id);
  return arrived;
}

void KvCache::AbortMove(const Move& move) {
  pool_.AbortMove(move);
  tree_.NoteMove(move.id);
}

// Where leases are full, and no more are to be had, the coldest of all go before anybody waits for the room (for who
// waits already, Grow has seen to it). For no more places than leases add: an engine never caches less with them than
// without.
void KvCache::EvictForWatermark() {
  if (spill_wish_ > 0 || pool_.num_lent() > 0 || leasable_blocks_ > 0) return;
  EvictForSpills(std::min(watermark(), num_usable_leased() - pool_.num_reserved()));
}

int64_t KvCache::SpillsWanted() const {
  if (pool_.num_lent() > 0 && spill_wish_ == 0) return 0;  // own memory comes back before any is used up elsewhere
  return std::max(watermark() - pool_.local().free, spill_wish_) - pool_.num_outbound_moves();
}

int64_t KvCache::RoomAtHome() const {
  const int64_t spills = std::min(SpillsWanted(), pool_.num_spillable());
  return spills > 0 ? -spills : std::max<int64_t>(0, pool_.local().free - watermark());
}

// Half a watermark above the one that spills, so that blocks do not go to and fro.
int64_t KvCache::PromotionsWanted() const {
  if (spill_wish_ > 0 || pool_.num_lent() > 0 || pool_.live().used == 0) return 0;
  return pool_.local().free - watermark() * 3 / 2;
}

std::vector<Move> KvCache::PlanDrain(RegionId region, int64_t max) {
  std::vector<Move> moves = planner_.Drain(region, max, watermark());
  CountEvicted();
  return moves;
}

int64_t KvCache::WorthSaving(RegionId region) const {
  const int64_t asked_for = pool_.num_asked_for(region);
  if (asked_for == 0 || (options_.leases_are_mapped && pool_.HasRefuge(region))) return asked_for;
  return std::clamp<int64_t>(pool_.local().free - watermark(), 0, asked_for);
}

int64_t KvCache::Heat(RegionId region) const {
  constexpr double kBlock = 1000;
  const auto all = static_cast<double>(pool_.local().total + pool_.leased().total);
  double heat = 0;
  for (const std::optional<BlockId>& occupant : pool_.occupants(region)) {
    if (!occupant) continue;
    const bool used = pool_.sequence_holds(*occupant) > 0;
    const double later = used ? 0 : static_cast<double>(tree_.uses() - pool_.last_use(*occupant));
    heat += kBlock * (used || pool_.is_asked_for(*occupant) ? 2 : 1) * all / (all + later);
  }
  return static_cast<int64_t>(heat / static_cast<double>(pool_.counts(region).total));
}

int64_t KvCache::DropRegion(RegionId region) {
  CHECK_EQ(pool_.num_moves_of(region), 0) << "moves of region " << region << " are under way";
  for (const std::optional<BlockId>& occupant : pool_.occupants(region)) {
    if (!occupant) continue;
    CHECK(tree_.Contains(*occupant)) << "a block table touches region " << region;
    tree_.Lose(*occupant);
  }
  const int64_t lost = NoteGone(ReuseMeter::Gone::kWithALease);
  pool_.RemoveRegion(region);
  return lost;
}

int64_t KvCache::TakeLeaseWish(int64_t margin) {
  const int64_t evicted = std::exchange(recently_evicted_, 0);
  const int64_t needed = std::exchange(wish_, 0);
  const int64_t beyond_own = std::max<int64_t>(0, needed - num_usable_local());
  const int64_t beyond = needed - num_usable() + std::min(margin, beyond_own);
  if (!options_.may_borrow) return 0;
  const int64_t short_of = watermark() - pool_.local().free - pool_.live().free;
  int64_t wish = 0;
  if (pool_.num_lent() == 0 && (evicted > 0 || short_of > 0)) wish = std::max<int64_t>(0, short_of) + evicted;
  return std::max(wish, beyond);
}

std::optional<std::vector<Move>> KvCache::ClearForLending(PlaceRun run, int64_t max_moves) {
  std::optional<std::vector<Move>> moves = planner_.Clear(run.first, run.count, max_moves, keep_cached_.value_or(0));
  CountEvicted(/*for_loan=*/true);
  return moves;
}

int64_t KvCache::TakeNeed() {
  return std::min(std::exchange(need_, 0) + std::exchange(reserve_need_, 0), pool_.num_lent());
}

// It is asked again and again before anybody takes the need.
Growth KvCache::ReserveLocal(int64_t blocks) {
  const int64_t of_others = need_;
  const Growth room = MakeFree(blocks, blocks);
  reserve_need_ = std::exchange(need_, of_others) - of_others;
  if (room != Growth::kDone) return room;
  const std::vector<int32_t> places = pool_.Reserve(blocks);
  reserved_.insert(reserved_.end(), places.begin(), places.end());
  return Growth::kDone;
}

void KvCache::ReleaseReserved(int64_t blocks) {
  CHECK_LE(blocks, static_cast<int64_t>(reserved_.size()));
  for (; blocks > 0; --blocks) {
    pool_.Unreserve(reserved_.back());
    reserved_.pop_back();
  }
}

}  // namespace swiftcache::engine::kv
