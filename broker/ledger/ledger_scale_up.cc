// SPDX-License-Identifier: Apache-2.0
// Ledger, the part that decides which leases a donor that needs memory takes back.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "broker/ledger/holding.h"
#include "broker/ledger/ledger.h"
#include "broker/ledger/pairing.h"
#include "common/base/status_macros.h"

namespace swiftcache::broker::ledger {

absl::StatusOr<std::vector<LeaseId>> Ledger::ScaleUp(const Party& who, int64_t need_blocks, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, FindMember(who));
  if (need_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("need_blocks is ", need_blocks, ", wanted more than 0"));
  }
  std::vector<const Lease*> lent;
  int64_t lent_blocks = 0;
  for (const auto& [id, record] : table_.all()) {
    if (record.lease.donor != who || record.lease.state == LeaseState::kOffered) continue;
    lent.push_back(&record.lease);
    lent_blocks += record.lease.extent.num_blocks;
  }
  if (lent.empty() || member->policy == nullptr) return std::vector<LeaseId>();
  std::sort(lent.begin(), lent.end(), Innermost);
  const elastic::UnitBlocks unit = UnitBlocksOf(*member, *lent.front());
  const int64_t needed = std::min(need_blocks, member->engine.num_blocks);
  return TakeBackOrder(lent, member->policy->TakeBackBlocks(needed, lent_blocks, unit, now), now);
}

// MEU_i and MEU_m of a lease's pair; {1, 1} where its borrower is gone.
elastic::UnitBlocks Ledger::UnitBlocksOf(const Member& donor, const Lease& lease) const {
  const auto borrower = members_.find(lease.borrower.name);
  if (borrower == members_.end()) return {};
  const auto unit = UnitOf(donor.engine, borrower->second.engine);
  if (!unit.ok()) return {};
  return {.worker = unit->donor_blocks, .master = unit->borrower_blocks};
}

// Leases that are being revoked first, then from the borrower with the most bytes per weight, until they add up to
// `target_blocks`.
std::vector<LeaseId> Ledger::TakeBackOrder(const std::vector<const Lease*>& lent, int64_t target_blocks,
                                           absl::Time now) const {
  std::vector<LeaseId> order;
  std::map<Party, Holding> holdings;
  int64_t blocks = 0;
  const auto take = [&](const Lease& lease) {
    order.push_back(lease.id);
    blocks += lease.extent.num_blocks;
  };
  for (const Lease* lease : lent) {
    if (lease->state == LeaseState::kRevoking) {
      take(*lease);
      continue;
    }
    Holding& holding = holdings[lease->borrower];
    holding.weight = WeightOf(lease->borrower, /*against_need=*/true, now);
    holding.bytes += lease->num_bytes;
    holding.leases.push_back(lease);
  }
  const auto has_any = [](const Holding& holding) { return !holding.leases.empty(); };
  while (blocks < target_blocks) {
    Holding* most = MostAbove(holdings, has_any);
    if (most == nullptr) break;
    take(most->Pop());
  }
  return order;
}

}  // namespace swiftcache::broker::ledger
