// SPDX-License-Identifier: Apache-2.0
// The default policy: every admitted and waiting token counts, a headroom is kept, and a worker that had to take memory
// back lends it again only after a longer quiet time.
//
//   DefaultPolicy policy(options, worker);
//   policy.Report({.used_blocks = 200, .waiting_blocks = 50, .window_peak_blocks = 400}, now);
//   int64_t blocks = policy.LendableBlocks(/*lent_blocks=*/0, {}, now);
#pragma once

#include "broker/elastic/peak_window.h"
#include "broker/elastic/policy.h"

namespace swiftcache::broker::elastic {

/// Algorithm 1 keeps enough blocks for the longest single request. This policy keeps enough for the highest *sum* that
/// running and waiting requests needed at one time, plus a headroom.
///
/// The lendable amount falls at once when a report says that the worker needs more. It rises only when the peak is
/// older than the horizon, which starts at one window. Whenever the worker takes memory back the horizon doubles (at
/// most once per window, up to kMaxDoublings times); it halves after kQuietHorizons horizons without such an event. A
/// worker with a spike of load every P (window < P <= 2^kMaxDoublings windows) therefore soon keeps its peak: after the
/// first 1 + log2(P / window) spikes, at most one spike in kQuietHorizons takes memory back from borrowers.
///
/// A worker that needs memory takes back at once what all its waiting requests need, plus the headroom, where Algorithm
/// 1 takes back one unit per request.
class DefaultPolicy final : public Policy {
 public:
  static constexpr int kMaxDoublings = 4;
  static constexpr int kQuietHorizons = 8;

  DefaultPolicy(const PolicyOptions& options, const Worker& worker) : options_(options), worker_(worker) {}

  void Report(const Demand& demand, absl::Time now) override;
  void TookBack(absl::Time now) override;
  int64_t LendableBlocks(int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;
  int64_t TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;

 private:
  int64_t Headroom() const;
  absl::Duration Horizon() const { return options_.window * (1 << doublings_); }
  void ShortenHorizon(absl::Time now);

  const PolicyOptions options_;
  const Worker worker_;
  bool reported_ = false;
  int64_t needed_now_ = 0, reported_peak_ = 0;  // of the last report
  PeakWindow peaks_;
  int doublings_ = 0;
  absl::Time last_doubled_ = absl::InfinitePast(), quiet_since_ = absl::InfinitePast();
};

}  // namespace swiftcache::broker::elastic
