// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/sources.h"

#include <algorithm>
#include <utility>

#include "broker/ledger/pairing.h"

namespace swiftcache::broker::ledger {

int64_t Sources::free_bytes() const {
  int64_t bytes = 0;
  for (const Source& source : list) bytes += source.free_bytes();
  return bytes;
}

Source* Sources::Best() {
  const auto rank = [](const Source& s) { return std::pair(s.free_units > 0 && !s.silent, s.free_bytes()); };
  const auto best =
      std::max_element(list.begin(), list.end(), [&](const Source& a, const Source& b) { return rank(a) < rank(b); });
  return best == list.end() || best->free_units < 1 ? nullptr : &*best;
}

Sources FindSources(const LeaseTable& table, const Members& members, const Engine& borrower, absl::Time now) {
  Sources sources;
  for (const PartyId id : members.OfNode(borrower.node_id)) {
    const Member* donor = members.Find(id);
    if (donor->policy == nullptr || !MayShare(donor->engine, borrower)) continue;
    const absl::StatusOr<elastic::ElasticUnit> unit = UnitOf(donor->engine, borrower);
    sources.units.push_back({.donor = donor->engine.party.name, .unit = unit});
    if (!unit.ok()) continue;
    const Holding& lent = table.LentBy(id);
    const int64_t lendable =
        donor->LendableBlocks(lent.blocks, {.worker = unit->donor_blocks, .master = unit->borrower_blocks}, now);
    Source source{.donor = donor, .unit = *unit, .taken = table.TakenOf(id), .leases = lent.leases};
    source.region = {.first_block = donor->engine.num_blocks - lendable, .num_blocks = lendable};
    source.free_units = std::max<int64_t>(0, lendable - lent.blocks) / unit->donor_blocks;
    source.silent = now < donor->silent_until;
    sources.list.push_back(std::move(source));
  }
  return sources;
}

}  // namespace swiftcache::broker::ledger
