// SPDX-License-Identifier: Apache-2.0
// A policy that knows all requests that its engine will have: it keeps what will be found again, and lends the rest.
//
//   OraclePolicy policy({.num_blocks = 512, .block_tokens = 16}, load);
#pragma once

#include <map>

#include "broker/elastic/policy.h"
#include "tests/sim/worth/load.h"

namespace swiftcache::sim::worth {

/// What it keeps at any time is the deepest block, in the order of last use, that the engine with all of its memory
/// would find again; and what its requests need at that moment. So a donor loses nothing that it will want, and lends
/// everything else. Thread-safety: none. Errors: none. Units: blocks.
class OraclePolicy final : public broker::elastic::Policy {
 public:
  OraclePolicy(const broker::elastic::Worker& worker, const Load& load);

  void Report(const broker::elastic::Demand& demand, absl::Time now) override;
  int64_t LendableBlocks(int64_t lent, const broker::elastic::UnitBlocks& unit, absl::Time now) override;
  int64_t TakeBackBlocks(int64_t need, int64_t lent, const broker::elastic::UnitBlocks&, absl::Time) override {
    return std::min(need, lent);
  }

 private:
  const broker::elastic::Worker worker_;
  int64_t needed_now_ = 0;
  std::map<double, int64_t> kept_;  // from this time on
};

}  // namespace swiftcache::sim::worth
