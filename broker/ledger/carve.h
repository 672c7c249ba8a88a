// SPDX-License-Identifier: Apache-2.0
// Finds room for a lease in the tail of an arena.
//
//   std::optional<Extent> extent = CarveFromTail({.first_block = 40, .num_blocks = 60}, taken,
//                                                {.unit_blocks = 8, .step_blocks = 8, .max_units = 4});
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

/// Units: the donor's blocks, except as named.
struct CarveSpec {
  int64_t unit_blocks = 1;  // the extent is a multiple of this, which is a multiple of
  int64_t step_blocks = 1;  // this: extents begin on multiples of it, which are page borders
  int64_t max_units = 1;    // the most that is wanted
};

/// Looks for a gap between the `taken` extents of `region`, which may overlap, starting at the arena's end. The first gap that has room
/// for one unit gives the extent: as many units as fit there, at most max_units. None: no gap has room. REQUIRES:
/// numbers of `spec` > 0. Pure.
std::optional<Extent> CarveFromTail(const Extent& region, std::vector<Extent> taken, const CarveSpec& spec);

}  // namespace swiftcache::broker::ledger
