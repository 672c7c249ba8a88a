// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/taking_back.h"

#include <algorithm>
#include <map>

#include "broker/ledger/pairing.h"
#include "broker/ledger/yielder.h"

namespace swiftcache::broker::ledger {
namespace {

// An offer that was not accepted is in its donor's use.
bool IsLent(const Record& record) { return record.lease.epoch.has_value(); }

}  // namespace

// Leases that are being revoked first, then from the borrower with the most bytes per weight.
std::vector<LeaseId> TakingBack::Order(Member& donor, int64_t need_blocks, absl::Time now) const {
  const Holding& lent = table_.LentBy(donor.engine.party);
  if (lent.blocks == lent.offered_blocks || donor.policy == nullptr) return {};
  const Places& first = lent.stay.empty() ? lent.revoking : lent.stay;
  const int64_t target =
      donor.policy->TakeBackBlocks(std::min(need_blocks, donor.engine.num_blocks), lent.blocks - lent.offered_blocks,
                                   UnitBlocksOf(donor, first.begin()->second->lease), now);
  std::vector<LeaseId> order;
  int64_t blocks = 0;
  const auto take = [&](const Lease& lease) {
    order.push_back(lease.id);
    blocks += lease.extent.num_blocks;
  };
  for (const auto& [place, record] : lent.revoking) {
    if (IsLent(*record)) take(record->lease);
  }
  std::map<Party, Yielder> yielders;
  for (const auto& [borrower, pair] : table_.PairsOf(donor.engine.party)) {
    Yielder& yielder = yielders[borrower];
    yielder.weight = members_.WeightOf(borrower, /*against_need=*/true, now);
    yielder.bytes = pair.bytes_that_stay();
    int64_t enough = target - blocks;
    for (auto it = pair.stay.begin(); it != pair.stay.end() && enough > 0; ++it) {
      if (!IsLent(*it->second)) continue;
      yielder.leases.push_back(&it->second->lease);
      enough -= it->second->lease.extent.num_blocks;
    }
  }
  const auto has_any = [](const Yielder& yielder) { return !yielder.leases.empty(); };
  while (blocks < target) {
    Yielder* most = MostAbove(yielders, has_any);
    if (most == nullptr) break;
    take(most->Pop());
  }
  return order;
}

// MEU_i and MEU_m of a lease's pair; {1, 1} where its borrower is gone.
elastic::UnitBlocks TakingBack::UnitBlocksOf(const Member& donor, const Lease& lease) const {
  const Member* borrower = members_.Find(lease.borrower);
  if (borrower == nullptr) return {};
  const auto unit = UnitOf(donor.engine, borrower->engine);
  if (!unit.ok()) return {};
  return {.worker = unit->donor_blocks, .master = unit->borrower_blocks};
}

}  // namespace swiftcache::broker::ledger
