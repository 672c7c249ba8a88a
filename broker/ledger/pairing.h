// SPDX-License-Identifier: Apache-2.0
// Whether a donor and a borrower can share memory, and in which units.
//
//   if (MayShare(donor, borrower)) ASSIGN_OR_RETURN(elastic::ElasticUnit unit, UnitOf(donor, borrower));
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/status/statusor.h"
#include "broker/elastic/elastic_unit.h"
#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

/// Whether these are two engines of one node that both share memory, and the donor is ready and has some that it lends.
inline bool MayShare(const Engine& donor, const Engine& borrower) {
  return donor.party.name != borrower.party.name && donor.node_id == borrower.node_id && donor.ready &&
         !donor.channel.empty() && !borrower.channel.empty() && donor.num_blocks > donor.never_lent_blocks &&
         donor.page_bytes > 0;
}

/// Errors: as elastic::ComputeUnit.
inline absl::StatusOr<elastic::ElasticUnit> UnitOf(const Engine& donor, const Engine& borrower) {
  return elastic::ComputeUnit({.donor_block_bytes = donor.block_bytes,
                               .borrower_block_bytes = borrower.block_bytes,
                               .page_bytes = std::lcm(donor.page_bytes, std::max<int64_t>(1, borrower.page_bytes)),
                               .donor_arena_bytes = donor.num_blocks * donor.block_bytes});
}

}  // namespace swiftcache::broker::ledger
