// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/members.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "broker/elastic/fair_share.h"
#include "common/base/units.h"

namespace swiftcache::broker::ledger {

Member& Members::Put(const Engine& engine) {
  std::unique_ptr<Member>& member = members_[engine.party.name];
  if (member == nullptr) {
    member = std::make_unique<Member>();
    member->id = parties_.Hold(engine.party);
    by_id_.resize(std::max<size_t>(by_id_.size(), member->id.value() + 1));
    by_id_[member->id.value()] = member.get();
  } else {
    Leave(*member);
  }
  member->engine = engine;
  Enter(*member);
  return *member;
}

void Members::Enter(const Member& member) {
  Group& group = by_node_[member.engine.node_id];
  const auto before = [this](const std::string& name, PartyId other) { return name < Find(other)->engine.party.name; };
  group.insert(std::upper_bound(group.begin(), group.end(), member.engine.party.name, before), member.id);
}

void Members::Erase(const std::string& name) {
  const auto it = members_.find(name);
  if (it == members_.end()) return;
  const PartyId id = it->second->id;
  Leave(*it->second);
  members_.erase(it);
  by_id_[id.value()] = nullptr;
  parties_.Drop(id);
}

void Members::Leave(const Member& member) {
  const auto group = by_node_.find(member.engine.node_id);
  std::erase(group->second, member.id);
  if (group->second.empty()) by_node_.erase(group);
}

Member* Members::Find(const std::string& name) const {
  const auto it = members_.find(name);
  return it == members_.end() ? nullptr : it->second.get();
}

Member* Members::Find(const Party& party) const {
  Member* member = Find(party.name);
  return member != nullptr && member->engine.party == party ? member : nullptr;
}

absl::StatusOr<Member*> Members::Require(const Party& party) const {
  if (Member* member = Find(party)) return member;
  return absl::UnavailableError(absl::StrCat("engine '", absl::CHexEscape(party.name), "' instance '",
                                             absl::CHexEscape(party.instance_id),
                                             "' is not registered; register, then ask again"));
}

const Members::Group& Members::OfNode(const std::string& node_id) const {
  static const Group none;
  const auto it = by_node_.find(node_id);
  return it == by_node_.end() ? none : it->second;
}

int64_t Members::WeightOf(const Member& borrower, bool against_need, absl::Time now) const {
  if (against_need && OnlyCaches(borrower, now)) return 1;
  return CheckedAdd(elastic::kBaseWeightTokens, HasOpenRequest(borrower, now) ? borrower.waiting_tokens : 0)
      .value_or(INT64_MAX);
}

}  // namespace swiftcache::broker::ledger
