// SPDX-License-Identifier: Apache-2.0
// Our policy: every admitted and waiting token counts, a headroom stays, and a worker that had to take memory back is
// trusted more slowly each time.
//
//   DefaultPolicy policy(options, worker);
#pragma once

#include "broker/elastic/peak_window.h"
#include "broker/elastic/policy.h"

namespace swiftcache::broker::elastic {

/// Where Algorithm 1 keeps the blocks of the longest single request, this keeps the highest *sum* that running and
/// waiting requests needed at one time, and a headroom beside it.
///
/// Lend slowly, shrink at once: what may be lent falls with the report that says so, and rises only when the peak has
/// left the horizon, one window long. Each time that the worker takes memory back the horizon doubles (at most once a
/// window, up to kMaxStrikes times), and it halves again only after kForgiveness quiet horizons. So a worker whose
/// spikes come every P (window < P <= 2^kMaxStrikes windows) is soon remembered at its peak: after the first
/// 1 + log2(P / window) spikes, at most one in kForgiveness costs anybody memory.
///
/// A worker in need takes back at once what all its waiting requests need, and the headroom, instead of one unit for
/// each request that comes.
class DefaultPolicy final : public Policy {
 public:
  static constexpr int kMaxStrikes = 4;
  static constexpr int kForgiveness = 8;

  DefaultPolicy(const PolicyOptions& options, const Worker& worker) : options_(options), worker_(worker) {}

  void Report(const Demand& demand, absl::Time now) override;
  void TookBack(absl::Time now) override;
  int64_t LendableBlocks(int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;
  int64_t TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;

 private:
  int64_t Headroom() const;
  absl::Duration Horizon() const { return options_.window * (1 << strikes_); }
  void Forgive(absl::Time now);

  const PolicyOptions options_;
  const Worker worker_;
  bool reported_ = false;
  int64_t needed_now_ = 0, told_peak_ = 0;  // of the last report
  PeakWindow peaks_;
  int strikes_ = 0;
  absl::Time last_strike_ = absl::InfinitePast(), quiet_since_ = absl::InfinitePast();
};

}  // namespace swiftcache::broker::elastic
