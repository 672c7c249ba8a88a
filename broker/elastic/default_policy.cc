// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/default_policy.h"

#include <algorithm>

#include "common/base/units.h"

namespace swiftcache::broker::elastic {

int64_t DefaultPolicy::Headroom() const { return CeilDiv(worker_.num_blocks * options_.headroom_percent, 100); }

void DefaultPolicy::Report(const Demand& demand, absl::Time now) {
  peaks_.Add(now, needed_now_);  // so much was needed until now
  reported_ = true;
  needed_now_ = demand.used_blocks + demand.waiting_blocks;
  cache_ = demand.cache_blocks;
  peaks_.Add(now, needed_now_);
  // A peak between two reports counts from the first report that contains it; the worker repeats it until it leaves the
  // worker's window.
  if (demand.window_peak_blocks > reported_peak_) peaks_.Add(now, demand.window_peak_blocks);
  reported_peak_ = demand.window_peak_blocks;
  peaks_.Forget(now, Hold());
}

int64_t DefaultPolicy::LendableBlocks(int64_t /*lent_blocks*/, const UnitBlocks& /*unit*/, absl::Time now) {
  if (!reported_) return 0;
  const int64_t kept = std::max({needed_now_, cache_, peaks_.Peak(now, Hold())});
  return std::max<int64_t>(0, worker_.num_blocks - kept - Headroom());
}

int64_t DefaultPolicy::TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& /*unit*/,
                                      absl::Time /*now*/) {
  const int64_t own = worker_.num_blocks - lent_blocks;
  return std::min(lent_blocks, std::max(need_blocks, needed_now_ + Headroom() - own));
}

}  // namespace swiftcache::broker::elastic
