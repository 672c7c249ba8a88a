// SPDX-License-Identifier: Apache-2.0
// A donor that must not notice that an extent is offered twice (PlantedBug::kLeaseTwice) sees each lease's extent in an
// arena of its own, beyond the real one: whole arenas further on.
#pragma once

#include <cstdint>
#include <limits>

#include "engine/lease/lease.h"
#include "tests/sim/plan.h"

namespace swiftcache::sim {

/// Without that bug it changes nothing. Thread-safety: a value. Units: blocks.
class Blindfold {
 public:
  Blindfold(PlantedBug bug, int64_t num_blocks) : on_(bug == PlantedBug::kLeaseTwice), num_blocks_(num_blocks) {}

  /// Of the arena, as the donor is told.
  int64_t num_blocks() const { return on_ ? std::numeric_limits<int64_t>::max() : num_blocks_; }
  /// As the donor sees it.
  engine::lease::Lease Blinded(engine::lease::Lease lease) const {
    if (on_) lease.extent.first_block += (1 + (lease.id.value() & 0xffff)) * num_blocks_;
    return lease;
  }
  /// What that is.
  engine::lease::Extent Seen(engine::lease::Extent extent) const {
    if (on_) extent.first_block %= num_blocks_;
    return extent;
  }
  engine::lease::Lease Seen(engine::lease::Lease lease) const {
    lease.extent = Seen(lease.extent);
    return lease;
  }

 private:
  bool on_;
  int64_t num_blocks_;
};

}  // namespace swiftcache::sim
