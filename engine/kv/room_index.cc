// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/room_index.h"

namespace swiftcache::engine::kv {

void RoomIndex::Add(const Lender& lender) {
  ++lenders_[lender].size;
  ++size_;
}

void RoomIndex::Remove(RegionId region, const Lender& lender) {
  SetRoom(region, lender, false);
  const auto leases = lenders_.find(lender);
  if (--leases->second.size == 0) lenders_.erase(leases);
  --size_;
}

void RoomIndex::SetRoom(RegionId region, const Lender& lender, bool has_room) {
  std::set<RegionId>& with_room = lenders_.at(lender).with_room;
  if (with_room.contains(region) == has_room) return;
  if (!with_room.empty()) oldest_.erase(*with_room.begin());
  if (has_room) {
    with_room.insert(region);
  } else {
    with_room.erase(region);
  }
  if (!with_room.empty()) oldest_.emplace(*with_room.begin(), lender);
}

std::optional<RegionId> RoomIndex::Oldest() const {
  return oldest_.empty() ? std::nullopt : std::optional(oldest_.begin()->first);
}

std::optional<RegionId> RoomIndex::OldestOfOthers(const Lender& lender) const {
  auto oldest = oldest_.begin();
  if (oldest != oldest_.end() && oldest->second == lender) ++oldest;
  return oldest == oldest_.end() ? std::nullopt : std::optional(oldest->first);
}

bool RoomIndex::HasOthers(const Lender& lender) const {
  const auto leases = lenders_.find(lender);
  return size_ > (leases == lenders_.end() ? 0 : leases->second.size);
}

bool RoomIndex::HasRoom(RegionId region, const Lender& lender) const {
  const auto leases = lenders_.find(lender);
  return leases != lenders_.end() && leases->second.with_room.contains(region);
}

}  // namespace swiftcache::engine::kv
