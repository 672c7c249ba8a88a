// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/parties.h"

namespace swiftcache::broker::ledger {

PartyId Parties::Hold(const Party& party) {
  const auto [it, is_new] = ids_.try_emplace(party);
  if (is_new && unused_.empty()) {
    it->second = PartyId(static_cast<uint32_t>(entries_.size()));
    entries_.push_back({.party = party});
  } else if (is_new) {
    it->second = unused_.back();
    unused_.pop_back();
    entries_[it->second.value()].party = party;
  }
  ++entries_[it->second.value()].uses;
  return it->second;
}

void Parties::Drop(PartyId id) {
  Entry& entry = entries_[id.value()];
  if (--entry.uses > 0) return;
  ids_.erase(entry.party);
  unused_.push_back(id);
}

std::optional<PartyId> Parties::Find(const Party& party) const {
  const auto it = ids_.find(party);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace swiftcache::broker::ledger
