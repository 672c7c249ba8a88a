// SPDX-License-Identifier: Apache-2.0
// Which leases a donor that needs memory takes back.
//
//   ASSIGN_OR_RETURN(std::vector<LeaseId> order, taking_back.Order(donor, need_blocks, now));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "broker/elastic/policy.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"
#include "broker/ledger/members.h"

namespace swiftcache::broker::ledger {

/// Thread-safety: none. Ownership: borrows table and members.
class TakingBack {
 public:
  TakingBack(const LeaseTable& table, const Members& members) : table_(table), members_(members) {}

  /// As Ledger::ScaleUp. REQUIRES: need_blocks > 0.
  std::vector<LeaseId> Order(Member& donor, int64_t need_blocks, absl::Time now) const;
  /// What Order goes by, for a donor that hears it too late: of its first kMaxWeights borrowers. Empty where it has one.
  static constexpr size_t kMaxWeights = 64;
  std::vector<BorrowerWeight> Weights(const Member& donor, absl::Time now) const;

 private:
  std::vector<int64_t> WeightsOfPairs(const Member& donor, absl::Time now) const;
  elastic::UnitBlocks UnitBlocksOf(const Member& donor, const Record& lease) const;

  const LeaseTable& table_;
  const Members& members_;
};

}  // namespace swiftcache::broker::ledger
