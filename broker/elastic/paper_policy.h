// SPDX-License-Identifier: Apache-2.0
// Algorithm 1 as printed, behind the interface of policies (--elastic_policy=paper).
//
//   PaperPolicy policy(worker);
#pragma once

#include "broker/elastic/policy.h"

namespace swiftcache::broker::elastic {

/// N_i of the algorithm is the number of blocks that the worker has not lent. Thread-safety: none.
class PaperPolicy final : public Policy {
 public:
  explicit PaperPolicy(const Worker& worker) : worker_(worker) {}

  void Report(const Demand& demand, absl::Time now) override;
  /// What is lent, and what ScaleDown gives up beyond it for the longest request of the worker's window.
  int64_t LendableBlocks(int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;
  /// ScaleUp for a request that needs `need_blocks` more than there are.
  int64_t TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) override;

 private:
  const Worker worker_;
  bool reported_ = false;
  int64_t window_max_request_tokens_ = 0;
};

}  // namespace swiftcache::broker::elastic
