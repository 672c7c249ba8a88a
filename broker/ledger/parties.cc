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
  if (is_new) by_instance_[party.instance_id].push_back(it->second);
  ++entries_[it->second.value()].uses;
  return it->second;
}

void Parties::Drop(PartyId id) {
  Entry& entry = entries_[id.value()];
  if (--entry.uses > 0) return;
  ids_.erase(entry.party);
  const auto same = by_instance_.find(entry.party.instance_id);
  std::erase(same->second, id);
  if (same->second.empty()) by_instance_.erase(same);
  unused_.push_back(id);
}

const std::vector<PartyId>& Parties::OfInstance(const std::string& instance_id) const {
  static const std::vector<PartyId> none;
  const auto it = by_instance_.find(instance_id);
  return it == by_instance_.end() ? none : it->second;
}

}  // namespace swiftcache::broker::ledger
