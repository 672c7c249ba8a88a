// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/members.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "broker/elastic/fair_share.h"
#include "common/base/units.h"

namespace swiftcache::broker::ledger {

Member& Members::Put(const Engine& engine) {
  Member& member = members_[engine.party.name];
  Leave(member);
  member.engine = engine;
  by_node_[engine.node_id][engine.party.name] = &member;
  by_model_[engine.model_name][engine.party.name] = &member;
  return member;
}

void Members::Erase(const std::string& name) {
  const auto it = members_.find(name);
  if (it == members_.end()) return;
  Leave(it->second);
  members_.erase(it);
}

void Members::Leave(const Member& member) {
  const auto leave = [&](Groups& groups, const std::string& key) {
    const auto group = groups.find(key);
    if (group == groups.end()) return;
    group->second.erase(member.engine.party.name);
    if (group->second.empty()) groups.erase(group);
  };
  leave(by_node_, member.engine.node_id);
  leave(by_model_, member.engine.model_name);
}

Member* Members::Find(const std::string& name) const {
  const auto it = members_.find(name);
  return it == members_.end() ? nullptr : const_cast<Member*>(&it->second);
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

const Members::ByName& Members::Group(const Groups& groups, const std::string& key) {
  static const ByName none;
  const auto it = groups.find(key);
  return it == groups.end() ? none : it->second;
}

std::vector<Party> Members::all() const {
  std::vector<Party> parties;
  for (const auto& [name, member] : members_) parties.push_back(member.engine.party);
  return parties;
}

bool Members::OnlyCaches(const Party& borrower, absl::Time now) const {
  const Member* member = Find(borrower);
  return member == nullptr || (member->idle && !HasOpenRequest(*member, now));
}

int64_t Members::WeightOf(const Party& borrower, bool against_need, absl::Time now) const {
  const Member* member = Find(borrower);
  if (member == nullptr || (against_need && OnlyCaches(borrower, now))) return 1;
  return CheckedAdd(elastic::kBaseWeightTokens, HasOpenRequest(*member, now) ? member->waiting_tokens : 0)
      .value_or(INT64_MAX);
}

}  // namespace swiftcache::broker::ledger
