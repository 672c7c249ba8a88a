// SPDX-License-Identifier: Apache-2.0
// Whether leases are of use: those that have long been of none are given back, and of the others donors hear how warm each
// is, since a donor in need takes the coldest back first.
//
//   use.Added();                    // with each lease
//   use.Look();                     // after each plan, and at next_look
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/coordinator/loop_events.h"
#include "engine/exec/leased_regions.h"
#include "engine/kv/tiers.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none. Cost: at most 66
/// looks a second at all places of a lease (kv::Tiers::Heat), as long as sequences run and for one round after that.
class LeaseUse {
 public:
  struct Dependencies {
    LeasedRegions* regions;
    kv::Tiers* cache;
    const sched::Scheduler* scheduler;
    coordinator::LoopEvents* coordinator;
    const Clock* clock;
  };
  explicit LeaseUse(const Dependencies& parts) : parts_(parts) {}

  /// A lease is given back in which for so long, and for kLeastIdle at least, no block was used and to which none came.
  void SetKeepIdle(absl::Duration keep);
  static constexpr absl::Duration kLeastIdle = absl::Minutes(1);
  void Added();
  void Look();
  /// When Look has something to do.
  absl::Time next_look() const;

 private:
  void GiveBackIdle();
  void TellHeat();
  void TellHeatOfNext();

  const Dependencies parts_;
  absl::Duration keep_idle_ = absl::InfiniteDuration();
  absl::Time next_idle_look_ = absl::InfiniteFuture();
  absl::Time next_heat_look_ = absl::InfinitePast();
  kv::RegionId heat_looked_at_ = kv::kLocalRegion;  // the latest
  int64_t heat_looks_left_ = 0;                     // until what ran, and what came, has been seen
};

}  // namespace swiftcache::engine::exec
