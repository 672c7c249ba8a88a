// SPDX-License-Identifier: Apache-2.0
// The default policy: a worker keeps what its requests need, what its cache is worth, and a headroom.
//
//   DefaultPolicy policy(options, worker);
//   policy.Report({.used_blocks = 200, .waiting_blocks = 50, .window_peak_blocks = 400, .cache_blocks = 300}, now);
//   int64_t blocks = policy.LendableBlocks(/*lent_blocks=*/0, {}, now);
#pragma once

#include <algorithm>

#include "broker/elastic/peak_window.h"
#include "broker/elastic/policy.h"

namespace swiftcache::broker::elastic {

/// Algorithm 1 keeps enough blocks for the longest single request. This policy keeps enough for the larger of two
/// things: the highest *sum* that running and waiting requests needed at one time within the last kHoldSeconds, and the cache
/// that the worker's own prompts found worth keeping (Demand::cache_blocks). So what it lends is colder than anything
/// that it will miss, but for engines that thrash while they pause (engine/exec/window_tracker.h); and it takes
/// memory back about once in that time at most, at once what all its waiting requests need and the headroom, where
/// Algorithm 1 takes back one unit per request.
///
/// A longer memory of peaks would only leave the memory unused: a loan that lasts seconds saves more than its end
/// costs. tests/sim/README.md has the figures from which the constants come.
class DefaultPolicy final : public Policy {
 public:
  static constexpr int kHoldSeconds = 3;  // or the window, if that is shorter

  DefaultPolicy(const PolicyOptions& options, const Worker& worker) : options_(options), worker_(worker) {}

  void Report(const Demand& demand, absl::Time now) override;
  int64_t LendableBlocks(int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;
  int64_t TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;

 private:
  int64_t Headroom() const;
  absl::Duration Hold() const { return std::min(options_.window, absl::Seconds(kHoldSeconds)); }

  const PolicyOptions options_;
  const Worker worker_;
  bool reported_ = false;
  int64_t needed_now_ = 0, reported_peak_ = 0, cache_ = 0;  // of the last report
  PeakWindow peaks_;
};

}  // namespace swiftcache::broker::elastic
