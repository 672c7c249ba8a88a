// SPDX-License-Identifier: Apache-2.0
// Where a borrower's memory could come from, now.
//
//   Sources sources = FindSources(table, members, borrower.engine, now);
//   while (Source* source = sources.Best()) ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/elastic/elastic_unit.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"
#include "broker/ledger/members.h"

namespace swiftcache::broker::ledger {

/// The unit in which a donor can lend to the borrower that asked, or the reason why it cannot.
struct PairUnit {
  std::string donor;
  absl::StatusOr<elastic::ElasticUnit> unit;
};

/// A donor as one borrower sees it.
struct Source {
  const Member* donor = nullptr;
  elastic::ElasticUnit unit;
  Extent region;              // where leases may lie
  std::vector<Extent> taken;  // on lease, or declined a moment ago
  int64_t leases = 0;         // that it gives
  int64_t free_units = 0;
  bool silent = false;  // it did not answer an offer a moment ago
  int64_t free_bytes() const { return free_units * unit.bytes; }
};

/// Thread-safety: none. Ownership: borrows the donors.
struct Sources {
  std::vector<Source> list;
  std::vector<PairUnit> units;  // refused pairs are here alone

  int64_t free_bytes() const;
  /// The one with the most to lend, who is silent after all others; null: nobody has a unit.
  Source* Best();
};

/// What the donors of the borrower's node may lend it, as their policies have it.
Sources FindSources(const LeaseTable& table, const Members& members, const Engine& borrower, absl::Time now);

}  // namespace swiftcache::broker::ledger
