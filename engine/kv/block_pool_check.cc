// SPDX-License-Identifier: Apache-2.0
// BlockPool::CheckInvariants: what the pool keeps against what it finds when it counts.
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/kv/block_pool.h"

namespace swiftcache::engine::kv {

absl::Status BlockPool::CheckInvariants() const {
  RETURN_IF_ERROR(CheckBlocks());
  RETURN_IF_ERROR(CheckPlaces(kLocalRegion, local_));
  for (const auto& [id, region] : leased_) RETURN_IF_ERROR(CheckPlaces(id, *region));
  return CheckSums();
}

absl::Status BlockPool::CheckSums() const {
  PlaceCounts leased, live;
  int64_t outbound = 0, num_live = 0;
  for (const auto& [id, region] : leased_) {
    leased += CountsOf(*region);
    if (region->draining) continue;
    ++num_live;
    live += CountsOf(*region);
    outbound += region->inbound;
    if (rooms_.HasRoom(id, region->lender) == region->free.empty()) {
      return absl::InternalError(absl::StrCat("region ", id.value(), " has ", region->free.size(),
                                              " free places, listed: ", region->free.empty() ? 1 : 0));
    }
  }
  if (leased == leased_sum_ && live == live_sum_ && outbound == num_outbound_moves_ && num_live == rooms_.size()) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the sums over leases do not add up: ", leased.total, " places, counted ",
                                          leased_sum_.total, "; of live ones ", live.total, ", counted ",
                                          live_sum_.total, "; outbound ", outbound, ", counted ", num_outbound_moves_));
}

absl::Status BlockPool::CheckBlocks() const {
  std::vector<bool> listed(blocks_.size(), false);
  for (int32_t id : free_ids_) listed[id] = true;
  int64_t in_order = 0, moves = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const bool exists = block.held() || block.to;
    if (exists == listed[i]) {
      return absl::InternalError(absl::StrCat("block ", i, " has ", block.sequences + block.local_sequences,
                                              " holds by sequences and ", block.cache ? 1 : 0,
                                              " by the cache; in the free list: ", listed[i] ? 1 : 0));
    }
    if (const ByUse* order = OrderOf(block)) {
      in_order += order->contains({block.last_use, BlockId(static_cast<int32_t>(i))});
    }
    moves += block.to.has_value();
    for (const std::optional<Place>& end : {exists ? std::optional(block.place) : std::nullopt, block.to}) {
      if (end && region(end->region).occupants[end->index] != BlockId(static_cast<int32_t>(i))) {
        return absl::InternalError(
            absl::StrCat("block ", i, " is not on place ", end->index, " of region ", end->region.value()));
      }
    }
  }
  const size_t ordered = spillable_idle_.size() + spillable_used_.size() + promotable_.size();
  if (in_order == static_cast<int64_t>(ordered) && moves == num_moves_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("blocks in the orders of use: found ", in_order, ", listed ", ordered,
                                          "; moves: found ", moves, ", counted ", num_moves_));
}

// Every place is one of: free, taken by a block or its move, and in the own arena lent or reserved.
absl::Status BlockPool::CheckPlaces(RegionId id, const Region& region) const {
  const bool own = id == kLocalRegion;
  int64_t used = 0, cached = 0, asked_for = 0, taken = 0, moves = 0, outbound = 0, inbound = 0;
  for (size_t i = 0; i < region.occupants.size(); ++i) {
    const std::optional<BlockId> occupant = region.occupants[i];
    const auto index = static_cast<int32_t>(i);
    const bool lent = own && lent_.Covers(index, 1);
    const bool free = region.free.Covers(index, 1);
    if (own && !written_[i] && !lent && (!free || dirty_.Covers(index, 1))) {
      return absl::InternalError(absl::StrCat("place ", i, " of the own arena was used and counts as zeroed"));
    }
    if (free + lent + occupant.has_value() > 1) {
      return absl::InternalError(absl::StrCat("place ", i, " of region ", id.value(), " has more than one owner"));
    }
    if (!occupant) continue;
    const Block& block = blocks_[occupant->value()];
    const Place place{id, index};
    if (block.place != place && block.to != place) {
      return absl::InternalError(absl::StrCat("place ", i, " of region ", id.value(), " names a block that left"));
    }
    ++taken;
    if (block.to) moves += (block.place.region == id) + (block.to->region == id && block.place.region != id);
    inbound += block.to == place && block.place.local();
    if (block.place == place) {
      used += block.used(), cached += block.idle(), asked_for += block.asked_for_idle(),
          outbound += block.to.has_value();
    }
  }
  int64_t rest = static_cast<int64_t>(region.occupants.size()) - CountsOf(region).free - taken;
  if (own) rest -= lent_.size() + num_reserved_;
  const bool moves_add_up =
      outbound == region.outbound && (own || (moves == region.moves && inbound == region.inbound));
  const bool holds_add_up = used == region.used && cached == region.cached && asked_for == region.asked_for;
  if (rest == 0 && holds_add_up && moves_add_up) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("region ", id.value(), ": ", rest, " places are nobody's; used: found ", used,
                                          ", counted ", region.used, "; cached: found ", cached, ", counted ",
                                          region.cached, "; asked for: found ", asked_for, ", counted ",
                                          region.asked_for, "; moves: found ", moves, ", counted ", region.moves));
}

}  // namespace swiftcache::engine::kv
