// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/donor.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

namespace swiftcache::engine::lease {

Donor::Entry* Donor::Find(kv::LeaseId id, std::initializer_list<Phase> phases) {
  auto it = leases_.find(id);
  const bool expected =
      it != leases_.end() && std::find(phases.begin(), phases.end(), it->second.phase) != phases.end();
  if (!expected) ++ignored_;
  return expected ? &it->second : nullptr;
}

void Donor::SetTtl(absl::Duration ttl) {
  options_.ttl = ttl;
  for (auto& [id, entry] : leases_) entry.RaiseTtl(ttl);
}

void Donor::OnLeaseUpdate(const Lease& lease, absl::Time now) {
  if (lease.donor_instance != options_.instance_id) return;
  const bool held = leases_.contains(lease.id);
  switch (lease.state) {
    case State::kOffered:
      return Offered(lease, now);
    case State::kGranted:
    case State::kRevoking:
      if (held && lease.state == State::kRevoking) {
        const Ending ending = lease.revoke_reason;
        Revoke(lease.id, absl::StrCat("the broker wants it revoked: ", EndingName(ending)), now, ending);
      }
      if (!held) SayReleased(lease, "it has ended before");
      return;
    case State::kReleased:
    case State::kFenced:
      if (held) Unknown(lease.id, now);
      return;
  }
}

void Donor::OnLeaseSnapshot(const std::vector<Lease>& leases, absl::Time now) {
  std::set<kv::LeaseId> known;
  for (const Lease& lease : leases) {
    known.insert(lease.id);
    OnLeaseUpdate(lease, now);
  }
  for (const Lease& lease : Held()) {
    if (!known.contains(lease.id)) Unknown(lease.id, now);
  }
}

void Donor::Unknown(kv::LeaseId id, absl::Time now) {
  const Entry& entry = leases_.at(id);
  if (!entry.granted()) return Revoke(id, "the broker withdrew its offer", now);
  actions_.emplace_back(Say{entry.lease, "the broker did not know it"});
}

void Donor::Refused(kv::LeaseId id, const std::string& why, absl::Time now) { Revoke(id, why, now); }

void Donor::SayReleased(Lease lease, const std::string& why) {
  lease.state = State::kReleased;
  actions_.emplace_back(Say{std::move(lease), why});
}

void Donor::Offered(const Lease& lease, absl::Time) {
  if (lease.donor_instance != options_.instance_id || leases_.contains(lease.id) || ended_.Contains(lease.id)) {
    ++ignored_;
    return;
  }
  if (const std::string why = ReasonToDecline(lease); !why.empty()) {
    SayReleased(lease, why);
    ended_.Add(lease.id);
    return;
  }
  Entry& entry = leases_[lease.id];
  entry.lease = lease;
  entry.lease.state = State::kOffered;
  entry.ttl = options_.ttl;
  actions_.emplace_back(ClearExtent{entry.lease});
}

std::string Donor::ReasonToDecline(const Lease& lease) const {
  if (!lends_) return "the donor is draining and lends no more";
  const Extent& extent = lease.extent;
  if (!LiesIn(extent, options_.num_blocks) || lease.num_bytes != extent.num_blocks * options_.block_bytes) {
    return absl::StrCat("an extent of ", extent.num_blocks, " blocks from ", extent.first_block, " on, and of ",
                        lease.num_bytes, " bytes, is none of the ", options_.num_blocks, " blocks of ",
                        options_.block_bytes, " bytes here; let this engine register again");
  }
  if (extent.first_block < options_.never_lent_blocks) {
    return absl::StrCat("an extent from block ", extent.first_block, " on reaches into the first ",
                        options_.never_lent_blocks, " blocks, which are never lent");
  }
  for (const auto& [id, held] : leases_) {
    if (Overlap(held.lease.extent, lease.extent)) return absl::StrCat("the extent overlaps that of lease ", id.value());
  }
  return "";
}

void Donor::Cleared(kv::LeaseId id, bool ok, absl::Time) {
  Entry* entry = Find(id, {Phase::kClearing});
  if (entry == nullptr) return;
  if (!ok) return EndUngranted(*entry, /*cleared=*/false, "its own KV needs the extent");
  if (entry->wanted_back) return EndUngranted(*entry, /*cleared=*/true, entry->why);
  entry->phase = Phase::kGranting;
  actions_.emplace_back(Grant{entry->lease});
}

void Donor::Granted(kv::LeaseId id, kv::Epoch epoch, absl::Time now) {
  Entry* entry = Find(id, {Phase::kGranting});
  if (entry == nullptr) return;
  if (entry->wanted_back) {
    actions_.emplace_back(Fence{id});
    return EndUngranted(*entry, /*cleared=*/true, entry->why);
  }
  entry->phase = Phase::kGranted;
  entry->lease.epoch = epoch;
  entry->lease.state = State::kGranted;
  entry->deadline = now + entry->ttl;
  accounts_.Begin(entry->lease.borrower_model, entry->lease.num_bytes, now);
  actions_.emplace_back(Say{entry->lease, ""});
}

void Donor::GrantFailed(kv::LeaseId id, const std::string& why, absl::Time) {
  Entry* entry = Find(id, {Phase::kGranting});
  if (entry != nullptr) EndUngranted(*entry, /*cleared=*/true, entry->wanted_back ? entry->why : why);
}

void Donor::BorrowerOpened(kv::LeaseId id, absl::Time now) {
  Entry* entry = Find(id, {Phase::kGranted, Phase::kRevoking});
  if (entry == nullptr) return;
  if (std::exchange(entry->opened, true)) {
    ++ignored_;
    return;
  }
  if (entry->phase == Phase::kRevoking) {
    actions_.emplace_back(SendRevoke{id, std::max(absl::ZeroDuration(), entry->deadline - now), /*again=*/true});
    return;
  }
  entry->phase = Phase::kActive;
  entry->deadline = now + entry->ttl;
  entry->heat = kUnknownHeat;
}

void Donor::Renewal(kv::LeaseId id, int64_t heat, absl::Time now) {
  Entry* entry = Find(id, {Phase::kActive});
  if (entry == nullptr) return;
  entry->heat = heat;
  entry->deadline = now + entry->ttl;
  actions_.emplace_back(SendRenewed{id});
}

void Donor::BorrowerReleased(kv::LeaseId id, absl::Time now) {
  if (Entry* entry = Find(id, {Phase::kGranted, Phase::kActive, Phase::kRevoking})) {
    End(*entry, entry->ending, false, "", now);
  }
}

void Donor::BorrowerGone(kv::LeaseId id, absl::Time now) {
  if (Entry* entry = Find(id, {Phase::kGranted, Phase::kActive, Phase::kRevoking})) {
    const bool revoked = entry->phase == Phase::kRevoking;  // a borrower that is just opening it leaves by going
    End(*entry, revoked ? entry->ending : Ending::kBorrowerGone, true, "its borrower is gone", now);
  }
}

void Donor::Revoke(kv::LeaseId id, const std::string& why, absl::Time now, Ending ending) {
  Entry* entry = Find(id, {Phase::kClearing, Phase::kGranting, Phase::kGranted, Phase::kActive});
  if (entry == nullptr) return;
  if (entry->wanted_back) {
    ++ignored_;
    return;
  }
  WantBack(*entry, ending, why, now, options_.revoke_deadline);
}

std::vector<Donor::Entry*> Donor::FirstToGo(int64_t blocks, absl::FunctionRef<bool(const Entry&)> among) {
  struct Yielder {
    int64_t bytes = 0, weight = 1;
    std::map<std::pair<int64_t, int64_t>, Entry*> leases;  // by heat and place
    std::set<int64_t> places;                              // their first blocks
  };
  if (blocks <= 0) return {};
  std::map<std::string, Yielder> yielders;  // by instance
  for (auto& [id, entry] : leases_) {
    if (!among(entry)) continue;
    Yielder& yielder = yielders[entry.lease.borrower_instance];
    yielder.bytes += entry.lease.num_bytes;
    yielder.weight = WeightOf(entry.lease.borrower_instance);
    yielder.leases[{entry.heat, entry.lease.extent.first_block}] = &entry;
    yielder.places.insert(entry.lease.extent.first_block);
  }
  // Who has more bytes per weight, among equals the innermost lease, is the greater one: whatever they say of heat.
  const auto less = [](const auto& a, const auto& b) {
    const auto& [x, y] = std::tie(a.second, b.second);
    const absl::int128 left = absl::int128(x.bytes) * y.weight, right = absl::int128(y.bytes) * x.weight;
    return left != right ? left < right : *x.places.begin() > *y.places.begin();
  };
  std::vector<Entry*> first;
  while (blocks > 0 && !yielders.empty()) {
    const auto most = std::max_element(yielders.begin(), yielders.end(), less);
    Yielder& yielder = most->second;
    Entry* entry = yielder.leases.begin()->second;
    first.push_back(entry);
    blocks -= entry->lease.extent.num_blocks;
    yielder.bytes -= entry->lease.num_bytes;
    yielder.leases.erase(yielder.leases.begin());
    yielder.places.erase(entry->lease.extent.first_block);
    if (yielder.leases.empty()) yielders.erase(most);
  }
  return first;
}

void Donor::NeedBack(int64_t blocks, absl::Time now) {
  Hasten(blocks, now);
  TakeForNeed(
      blocks - blocks_coming_back(), [](const Entry&) { return true; }, now);
}

void Donor::TakeAdvised(const std::vector<kv::LeaseId>& leases, absl::Time now) {
  std::map<std::string, int64_t> wanted;  // by instance
  for (const kv::LeaseId id : leases) {
    if (const Entry* entry = Find(id, {Phase::kGranting, Phase::kGranted, Phase::kActive, Phase::kRevoking})) {
      wanted[entry->lease.borrower_instance] += entry->lease.extent.num_blocks;
    }
  }
  for (const auto& [id, entry] : leases_) {
    const auto it = wanted.find(entry.lease.borrower_instance);
    if (it != wanted.end() && entry.taken() && entry.comes_back()) it->second -= entry.lease.extent.num_blocks;
  }
  int64_t left = 0;  // a lease that is larger than what its borrower owes gives for the others
  for (const auto& [borrower, blocks] : wanted) left += std::max<int64_t>(0, blocks);
  for (const auto& [borrower, blocks] : wanted) {
    const auto is_its = [&borrower = borrower](const Entry& entry) {
      return entry.lease.borrower_instance == borrower;
    };
    left -= TakeForNeed(std::min(blocks, left), is_its, now);
  }
}

int64_t Donor::TakeForNeed(int64_t blocks, absl::FunctionRef<bool(const Entry&)> among, absl::Time now) {
  const auto may_go = [&among](const Entry& entry) { return entry.lent() && among(entry); };
  int64_t taken = 0;
  for (Entry* entry : FirstToGo(blocks, may_go)) {
    taken += entry->lease.extent.num_blocks;
    WantBack(*entry, Ending::kNeed, "the donor needs its memory", now, options_.revoke_deadline);
  }
  return taken;
}

// A borrower that is new since has just been given its share.
int64_t Donor::WeightOf(const std::string& borrower) const {
  const auto it = weights_.find(borrower);
  if (it != weights_.end()) return std::max<int64_t>(1, it->second);
  int64_t most = 1;
  for (const auto& [instance, weight] : weights_) most = std::max(most, weight);
  return most;
}

bool Donor::HasChoice(int64_t blocks) const {
  if (blocks >= blocks_on_loan()) return false;
  std::set<std::string> borrowers;
  for (const auto& [id, entry] : leases_) {
    if (entry.lent()) borrowers.insert(entry.lease.borrower_instance);
  }
  return borrowers.size() > 1;
}

void Donor::RevokeAll(const std::string& why, absl::Time now, absl::Duration time_left) {
  lends_ = false;
  time_left = std::max(time_left, options_.revoke_deadline);
  for (auto it = leases_.begin(); it != leases_.end();) {
    Entry& entry = (it++)->second;  // it may end here
    if (!entry.comes_back()) WantBack(entry, Ending::kShutdown, why, now, time_left);
  }
}

void Donor::Hasten(int64_t blocks, absl::Time now) {
  const absl::Time until = now + options_.revoke_deadline;
  const auto has_time = [until](const Entry& entry) {
    return entry.phase == Phase::kRevoking && entry.deadline > until;
  };
  int64_t in_time = blocks_coming_back();
  for (const auto& [id, entry] : leases_) in_time -= has_time(entry) ? entry.lease.extent.num_blocks : 0;
  for (Entry* entry : FirstToGo(blocks - in_time, has_time)) AskBack(*entry, now, options_.revoke_deadline);
}

void Donor::WantBack(Entry& entry, Ending ending, const std::string& why, absl::Time now, absl::Duration time_left) {
  entry.ending = ending;
  entry.why = why;
  entry.revoked_at = now;
  switch (entry.phase) {
    case Phase::kClearing:
    case Phase::kGranting:
      entry.phase == Phase::kClearing ? actions_.emplace_back(StopClearing{entry.lease.id})
                                      : actions_.emplace_back(StopGranting{entry.lease});
      entry.wanted_back = true;
      return;
    case Phase::kGranted:  // nobody reads it; but where there is time, who is just opening it is asked
      if (ending != Ending::kShutdown) return End(entry, ending, false, why, now);
      return AskBack(entry, now, std::min({time_left, entry.deadline - now, kOpeningPatience}));
    case Phase::kActive:
      return AskBack(entry, now, time_left);
    case Phase::kRevoking:
      return;
  }
}

void Donor::AskBack(Entry& entry, absl::Time now, absl::Duration time_left) {
  const bool again = std::exchange(entry.phase, Phase::kRevoking) == Phase::kRevoking;
  entry.deadline = now + time_left;
  none_overdue_before_ = std::min(none_overdue_before_, entry.deadline);
  actions_.emplace_back(SendRevoke{entry.lease.id, time_left, again});
}

void Donor::FenceOverdue(absl::Time now) {
  if (now < none_overdue_before_) return;
  none_overdue_before_ = absl::InfiniteFuture();
  for (auto it = leases_.begin(); it != leases_.end();) {
    Entry& entry = (it++)->second;  // it may end here
    if (entry.phase != Phase::kRevoking) continue;
    if (entry.deadline <= now) {
      End(entry, entry.ending, entry.opened, entry.why, now);
    } else {
      none_overdue_before_ = std::min(none_overdue_before_, entry.deadline);
    }
  }
}

void Donor::Tick(absl::Time now) {
  FenceOverdue(now);
  for (auto it = leases_.begin(); it != leases_.end();) {
    Entry& entry = (it++)->second;  // it may end here
    if (entry.deadline > now) continue;
    const bool opened = entry.phase != Phase::kGranted;
    End(entry, Ending::kBorrowerGone, true, opened ? "its borrower stopped renewing" : "its borrower never opened it",
        now);
  }
}

absl::Time Donor::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, entry] : leases_) next = std::min(next, entry.deadline);
  return next;
}

void Donor::EndUngranted(Entry& entry, bool cleared, const std::string& why) {
  if (cleared) TakeBackExtent(entry, false);
  SayEnd(entry, State::kReleased, entry.wanted_back ? entry.why : why);
}

void Donor::End(Entry& entry, Ending ending, bool fenced, const std::string& why, absl::Time now) {
  accounts_.End(entry.lease.borrower_model, entry.lease.num_bytes, ending, fenced, now);
  actions_.emplace_back(Fence{entry.lease.id});
  TakeBackExtent(entry, fenced);
  SayEnd(entry, fenced ? State::kFenced : State::kReleased, why);
}

void Donor::SayEnd(Entry& entry, State end, const std::string& why) {
  const kv::LeaseId id = entry.lease.id;
  entry.lease.state = end;
  actions_.emplace_back(Say{std::move(entry.lease), why});
  ended_.Add(id);
  leases_.erase(id);
}

void Donor::TakeBackExtent(const Entry& entry, bool fenced) {
  absl::Time deadline = entry.revoked_at + options_.revoke_deadline;
  if (entry.phase == Phase::kClearing) deadline = absl::InfiniteFuture();
  if (entry.phase == Phase::kRevoking) deadline = entry.deadline;
  actions_.emplace_back(TakeBack{entry.lease.id, entry.lease.extent, fenced, entry.revoked_at, deadline,
                                 entry.ending == Ending::kShutdown});
}

std::vector<Donor::Action> Donor::TakeActions() { return std::exchange(actions_, {}); }

std::vector<Lease> Donor::Held() const {
  std::vector<Lease> held;
  for (const auto& [id, entry] : leases_) held.push_back(entry.lease);
  return held;
}

std::vector<Lease> Donor::Given() const {
  std::vector<Lease> given;
  for (const auto& [id, entry] : leases_) {
    if (entry.granted()) given.push_back(entry.lease);
  }
  return given;
}

int64_t Donor::blocks_on_loan() const {
  int64_t blocks = 0;
  for (const auto& [id, entry] : leases_) blocks += entry.taken() ? entry.lease.extent.num_blocks : 0;
  return blocks;
}

int64_t Donor::blocks_coming_back() const {
  int64_t blocks = 0;
  for (const auto& [id, entry] : leases_) {
    blocks += entry.taken() && entry.comes_back() ? entry.lease.extent.num_blocks : 0;
  }
  return blocks;
}

bool Donor::revoking() const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [](const auto& lease) { return lease.second.phase == Phase::kRevoking; });
}

absl::Status Donor::CheckInvariants() const {
  std::vector<const Entry*> by_block;
  std::map<std::string, int64_t> given_bytes;
  for (const auto& [id, entry] : leases_) {
    by_block.push_back(&entry);
    const bool granted = entry.granted();
    if (granted) given_bytes[entry.lease.borrower_model] += entry.lease.num_bytes;
    if (granted != (entry.lease.state == State::kGranted) || granted != (entry.deadline < absl::InfiniteFuture())) {
      return absl::InternalError(absl::StrCat("lease ", id.value(), ": state ", StateName(entry.lease.state),
                                              " in phase ", static_cast<int>(entry.phase), ", deadline ",
                                              absl::FormatTime(entry.deadline)));
    }
    if (entry.phase == Phase::kRevoking && entry.deadline < none_overdue_before_) {
      return absl::InternalError(absl::StrCat("lease ", id.value(), " is overdue before anybody looks"));
    }
    if (ended_.Contains(id)) return absl::InternalError(absl::StrCat("lease ", id.value(), " lives and has ended"));
  }
  std::sort(by_block.begin(), by_block.end(),
            [](const Entry* a, const Entry* b) { return a->lease.extent.first_block < b->lease.extent.first_block; });
  for (size_t i = 1; i < by_block.size(); ++i) {
    if (Overlap(by_block[i - 1]->lease.extent, by_block[i]->lease.extent)) {
      return absl::InternalError(absl::StrCat("leases ", by_block[i - 1]->lease.id.value(), " and ",
                                              by_block[i]->lease.id.value(), " share a block"));
    }
  }
  for (const auto& [model, account] : accounts_.all()) {
    if (account.bytes == given_bytes[model]) continue;
    return absl::InternalError(absl::StrCat("model ", model, " has ", given_bytes[model], " bytes on lease, and ",
                                            account.bytes, " in its account"));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::lease
