// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/borrower.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::lease {

Borrower::Entry* Borrower::Find(kv::LeaseId id, std::initializer_list<Phase> phases) {
  auto it = leases_.find(id);
  const bool expected =
      it != leases_.end() && std::find(phases.begin(), phases.end(), it->second.phase) != phases.end();
  if (!expected) ++ignored_;
  return expected ? &it->second : nullptr;
}

void Borrower::SetTtl(absl::Duration ttl, absl::Time now) {
  options_.ttl = ttl;
  for (auto& [id, entry] : leases_) {
    entry.ttl = std::min(entry.ttl, ttl);
    if (entry.phase == Phase::kActive) entry.next_renewal = std::min(entry.next_renewal, now + entry.ttl / 3);
  }
}

void Borrower::OnLeaseUpdate(const Lease& lease, absl::Time now) {
  if (lease.borrower_instance == options_.instance_id && lease.state == State::kGranted) Granted(lease, now);
}

void Borrower::Granted(const Lease& lease, absl::Time now) {
  if (lease.borrower_instance != options_.instance_id || leases_.contains(lease.id) || ended_.Contains(lease.id)) {
    ++ignored_;
    return;
  }
  if (lease.borrower_blocks < 1 || lease.borrower_blocks > lease.num_bytes / options_.block_bytes) {
    ++ignored_;
    return;
  }
  Entry& entry = leases_[lease.id];
  entry.lease = lease;
  entry.ttl = options_.ttl;
  entry.asked_at = now;
  entry.give_up = now + entry.ttl;
  actions_.emplace_back(Open{entry.lease});
  if (!borrows_) WantBack(entry, now);
}

void Borrower::Opened(kv::LeaseId id, bool ok, absl::Time now) {
  Entry* entry = Find(id, {Phase::kOpening});
  if (entry == nullptr) return;
  if (!ok) return End(*entry);
  if (entry->wanted_back) return Release(*entry);
  entry->phase = Phase::kActive;
  entry->give_up = now + entry->ttl;
  entry->next_renewal = now + entry->ttl / 3;
  actions_.emplace_back(Use{entry->lease});
  if (now - entry->asked_at >= entry->ttl / 3) Renew(*entry, now);
}

void Borrower::Renewed(kv::LeaseId id, absl::Time now) {
  if (Entry* entry = Find(id, {Phase::kActive})) entry->give_up = now + entry->ttl;
}

void Borrower::Revoked(kv::LeaseId id, absl::Duration time_left, absl::Time now) {
  Entry* entry = Find(id, {Phase::kOpening, Phase::kActive, Phase::kDraining});
  if (entry == nullptr) return;
  if (entry->phase == Phase::kOpening) return WantBack(*entry, now);
  if (!DrainBy(*entry, now + std::clamp(time_left, absl::ZeroDuration(), options_.ttl))) ++ignored_;
}

void Borrower::WantBack(Entry& entry, absl::Time now) {
  entry.wanted_back = true;
  entry.give_up = std::min(entry.give_up, now + kOpeningPatience);
}

void Borrower::GiveBack(kv::LeaseId id, absl::Duration drain, absl::Time now) { Revoked(id, drain, now); }

void Borrower::GiveBackAll(absl::Duration drain, absl::Time now) {
  borrows_ = false;
  for (const Lease& lease : Held()) GiveBack(lease.id, drain, now);
}

void Borrower::Drained(kv::LeaseId id, absl::Time) {
  Entry* entry = Find(id, {Phase::kDraining, Phase::kLosing});
  if (entry == nullptr) return;
  entry->phase == Phase::kDraining ? Release(*entry) : End(*entry);
}

void Borrower::Unread(kv::LeaseId id, absl::Time) {
  Entry* entry = Find(id, {Phase::kDraining});
  if (entry == nullptr) return;
  entry->phase = Phase::kLosing;
  entry->give_up = absl::InfiniteFuture();
}

void Borrower::Dropped(kv::LeaseId id, absl::Time) {
  if (Entry* entry = Find(id, {Phase::kLosing})) End(*entry);
}

void Borrower::DonorGone(kv::LeaseId id, absl::Time) {
  Entry* entry = Find(id, {Phase::kOpening, Phase::kActive, Phase::kDraining});
  if (entry == nullptr) return;
  if (entry->phase == Phase::kOpening) return End(*entry);
  StartLose(*entry, "its donor is gone");
}

void Borrower::GenerationChanged(kv::LeaseId id, absl::Time) { Fail(id, "its generation changed"); }

void Borrower::StoreFailed(kv::LeaseId id, const std::string& why, absl::Time) {
  Fail(id, absl::StrCat("a store failed: ", why));
}

void Borrower::Fail(kv::LeaseId id, const std::string& why) {
  if (Entry* entry = Find(id, {Phase::kActive, Phase::kDraining})) StartLose(*entry, why);
}

// KV in these leases can still be read, so they are drained rather than lost at once.
void Borrower::DonorSilent(kv::LeaseId id, absl::Time now) {
  const Entry* silent = Find(id, {Phase::kActive, Phase::kDraining});
  if (silent == nullptr) return;
  bool any = false;
  for (auto& [other, entry] : leases_) {
    if (entry.lease.donor_instance == silent->lease.donor_instance) any |= DrainBy(entry, now + options_.drain);
  }
  if (!any) ++ignored_;
}

void Borrower::Tick(absl::Time now) {
  for (auto it = leases_.begin(); it != leases_.end();) {
    Entry& entry = (it++)->second;  // it may end here
    if (entry.give_up <= now) {
      GiveUp(entry, now);
    } else if (entry.next_renewal <= now) {
      Renew(entry, now);
    }
  }
}

void Borrower::Renew(Entry& entry, absl::Time now) {
  entry.next_renewal = now + entry.ttl / 3;
  actions_.emplace_back(SendRenewal{entry.lease.id, entry.heat});
}

void Borrower::NoteHeat(kv::LeaseId id, int64_t heat, absl::Time now) {
  Entry* entry = Find(id, {Phase::kActive});
  if (entry == nullptr) return;
  entry->heat = heat;
  Renew(*entry, now);
}

void Borrower::GiveUp(Entry& entry, absl::Time now) {
  switch (entry.phase) {
    case Phase::kOpening:
      return End(entry);
    case Phase::kActive:
      return StartDrain(entry, now + options_.drain);
    case Phase::kDraining:
      return StartLose(entry, "it was not drained in time");
    case Phase::kLosing:
      return;
  }
}

absl::Time Borrower::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, entry] : leases_) next = std::min({next, entry.give_up, entry.next_renewal});
  return next;
}

// False: it is not in use, or drains by then already.
bool Borrower::DrainBy(Entry& entry, absl::Time until) {
  const bool drains = entry.phase == Phase::kDraining && until < entry.give_up;
  if (!drains && entry.phase != Phase::kActive) return false;
  StartDrain(entry, until);
  return true;
}

void Borrower::StartDrain(Entry& entry, absl::Time until) {
  entry.phase = Phase::kDraining;
  entry.give_up = until;
  entry.next_renewal = absl::InfiniteFuture();
  actions_.emplace_back(Drain{entry.lease.id, until});
}

void Borrower::StartLose(Entry& entry, const std::string& why) {
  entry.phase = Phase::kLosing;
  entry.give_up = entry.next_renewal = absl::InfiniteFuture();
  actions_.emplace_back(Lose{entry.lease.id, why});
}

void Borrower::Release(Entry& entry) {
  actions_.emplace_back(SendRelease{entry.lease.id});
  End(entry);
}

void Borrower::End(Entry& entry) {
  const kv::LeaseId id = entry.lease.id;
  actions_.emplace_back(Close{id});
  ended_.Add(id);
  leases_.erase(id);
}

std::vector<Borrower::Action> Borrower::TakeActions() { return std::exchange(actions_, {}); }

std::vector<Lease> Borrower::Held() const {
  std::vector<Lease> held;
  for (const auto& [id, entry] : leases_) {
    if (entry.phase != Phase::kLosing) held.push_back(entry.lease);
  }
  return held;
}

bool Borrower::any_held() const {
  return std::any_of(leases_.begin(), leases_.end(), [](const auto& l) { return l.second.phase != Phase::kLosing; });
}

int64_t Borrower::held_bytes() const {
  int64_t bytes = 0;
  for (const auto& [id, entry] : leases_) {
    if (entry.phase != Phase::kLosing) bytes += entry.lease.num_bytes;
  }
  return bytes;
}

int64_t Borrower::opening_bytes() const {
  int64_t bytes = 0;
  for (const auto& [id, entry] : leases_) {
    if (entry.phase == Phase::kOpening && !entry.wanted_back) bytes += entry.lease.num_bytes;
  }
  return bytes;
}

absl::Status Borrower::CheckInvariants() const {
  for (const auto& [id, entry] : leases_) {
    const bool waits = entry.phase != Phase::kLosing;
    if (waits != (entry.give_up < absl::InfiniteFuture()) ||
        (entry.phase == Phase::kActive) != (entry.next_renewal < absl::InfiniteFuture())) {
      return absl::InternalError(absl::StrCat("lease ", id.value(), " in phase ", static_cast<int>(entry.phase),
                                              ": gives up at ", absl::FormatTime(entry.give_up), ", renews at ",
                                              absl::FormatTime(entry.next_renewal)));
    }
    if (ended_.Contains(id)) return absl::InternalError(absl::StrCat("lease ", id.value(), " lives and has ended"));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::lease
