// SPDX-License-Identifier: Apache-2.0
// Which leases have room, by age and by lender.
//
//   rooms.Add(lender);
//   rooms.SetRoom(region, lender, true);
//   std::optional<RegionId> to = rooms.OldestOfOthers(lender);   // nothing: only this lender's have room
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/kv/place.h"

namespace swiftcache::engine::kv {

/// Thread-safety: none. Ownership: a value. Errors: none. Units: leases; each call is O(log of their number).
class RoomIndex {
 public:
  /// Whose memory a lease is. Where no name is known it is a lender of its own.
  using Lender = std::pair<std::string, RegionId>;
  static Lender LenderOf(RegionId region, std::string name) {
    const bool named = !name.empty();
    return {std::move(name), named ? kLocalRegion : region};
  }

  /// A lease of this lender, without room.
  void Add(const Lender& lender);
  /// REQUIRES: added.
  void Remove(RegionId region, const Lender& lender);
  /// REQUIRES: added.
  void SetRoom(RegionId region, const Lender& lender, bool has_room);

  /// The oldest with room.
  std::optional<RegionId> Oldest() const;
  /// The oldest with room that is not of this lender.
  std::optional<RegionId> OldestOfOthers(const Lender& lender) const;
  /// Whether there is a lease of somebody else, with room or without.
  bool HasOthers(const Lender& lender) const;
  bool HasRoom(RegionId region, const Lender& lender) const;
  int64_t size() const { return size_; }

 private:
  struct Leases {
    std::set<RegionId> with_room;  // ascending: the oldest first
    int64_t size = 0;
  };
  std::map<Lender, Leases> lenders_;   // that have any
  std::map<RegionId, Lender> oldest_;  // with room, of each lender
  int64_t size_ = 0;
};

}  // namespace swiftcache::engine::kv
