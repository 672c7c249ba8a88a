// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/taking_back.h"

#include <algorithm>

#include "broker/ledger/pairing.h"
#include "broker/ledger/yielder.h"

namespace swiftcache::broker::ledger {

// Leases that are being revoked first, then from the borrower with the most bytes per weight.
std::vector<LeaseId> TakingBack::Order(Member& donor, int64_t need_blocks, absl::Time now) const {
  const Holding& lent = table_.LentBy(donor.id);
  if (lent.bytes == lent.offered_bytes || donor.policy == nullptr) return {};
  const Places& first = lent.stay.empty() ? lent.revoking : lent.stay;
  const int64_t granted_blocks = lent.blocks - lent.offered_bytes / donor.engine.block_bytes;
  const int64_t target = donor.policy->TakeBackBlocks(std::min(need_blocks, donor.engine.num_blocks), granted_blocks,
                                                      UnitBlocksOf(donor, *first.begin()->second), now);
  std::vector<LeaseId> order;
  int64_t blocks = 0;
  const auto take = [&](const Lease& lease) {
    order.push_back(lease.id);
    blocks += lease.extent.num_blocks;
  };
  for (const auto& [place, record] : lent.revoking) {
    if (record->lease.epoch.has_value()) take(record->lease);
  }
  const std::vector<Pair>& pairs = table_.PairsOf(donor.id);
  const std::vector<int64_t> weights = WeightsOfPairs(donor, now);
  std::vector<Yielder> yielders;
  yielders.reserve(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Holding& pair = pairs[i].holding;
    yielders.emplace_back(pair.bytes_that_stay(), weights[i], pair.stay, /*offers=*/pair.offered_bytes > 0);
  }
  const auto has_any = [](const Yielder& yielder) { return yielder.has_leases(); };
  while (blocks < target) {
    Yielder* most = MostAbove(yielders, has_any);
    if (most == nullptr) break;
    take(most->Pop());
  }
  return order;
}

// A borrower that is not here weighs as the heaviest that is: so its donor has it, whom Weights does not tell of it.
std::vector<int64_t> TakingBack::WeightsOfPairs(const Member& donor, absl::Time now) const {
  const std::vector<Pair>& pairs = table_.PairsOf(donor.id);
  std::vector<int64_t> weights;
  weights.reserve(pairs.size());
  int64_t most = 1;
  for (const auto& [borrower, pair] : pairs) {
    const Member* member = members_.Find(borrower);
    weights.push_back(member == nullptr ? 0 : members_.WeightOf(*member, /*against_need=*/true, now));
    most = std::max(most, weights.back());
  }
  std::replace(weights.begin(), weights.end(), int64_t{0}, most);
  return weights;
}

std::vector<BorrowerWeight> TakingBack::Weights(const Member& donor, absl::Time now) const {
  const std::vector<Pair>& pairs = table_.PairsOf(donor.id);
  std::vector<BorrowerWeight> weights;
  if (pairs.size() < 2) return weights;
  for (const auto& [borrower, pair] : pairs) {
    if (weights.size() == kMaxWeights) break;
    const Member* member = members_.Find(borrower);
    if (member == nullptr) continue;
    weights.push_back({member->engine.party.instance_id, members_.WeightOf(*member, /*against_need=*/true, now)});
  }
  return weights;
}

// MEU_i and MEU_m of a lease's pair; {1, 1} where its borrower is not here.
elastic::UnitBlocks TakingBack::UnitBlocksOf(const Member& donor, const Record& lease) const {
  const Member* borrower = members_.Find(lease.borrower);
  if (borrower == nullptr) return {};
  const auto unit = UnitOf(donor.engine, borrower->engine);
  if (!unit.ok()) return {};
  return {.worker = unit->donor_blocks, .master = unit->borrower_blocks};
}

}  // namespace swiftcache::broker::ledger
