// SPDX-License-Identifier: Apache-2.0
// Where a block's bytes lie: in the own arena or in a lease.
#pragma once

#include <compare>
#include <cstdint>

#include "common/base/strong_id.h"
#include "engine/kv/block.h"

namespace swiftcache::engine::kv {

/// A memory that blocks lie in: the own arena, or one lease of another's. Never given twice in the life of a pool.
using RegionId = StrongId<struct RegionIdTag, int32_t>;
inline constexpr RegionId kLocalRegion{0};

/// Place `index` of a region begins index * block_bytes after the region does.
struct Place {
  RegionId region = kLocalRegion;
  int32_t index = 0;

  bool local() const { return region == kLocalRegion; }
  friend auto operator<=>(const Place&, const Place&) = default;
};

/// `count` adjacent places of one region.
struct PlaceRun {
  int32_t first = 0;
  int32_t count = 0;

  friend bool operator==(const PlaceRun&, const PlaceRun&) = default;
};

/// A block's bytes on their way. Until the move ends both places are taken and `from` is the truth.
struct Move {
  BlockId id;
  Place from, to;

  friend bool operator==(const Move&, const Move&) = default;
};

}  // namespace swiftcache::engine::kv
