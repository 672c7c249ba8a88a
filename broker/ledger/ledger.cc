// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::broker::ledger {

Ledger::Ledger(const Options& options, NewCapability new_capability)
    : options_(options),
      table_(parties_),
      members_(options.request_ttl, parties_),
      limits_(table_),
      claims_(options_, table_, limits_),
      allocation_(options_, std::move(new_capability), parties_, table_, members_, limits_),
      taking_back_(table_, members_) {}

void Ledger::AddEngine(const Engine& engine, const std::vector<Lease>& given, absl::Time now) {
  Tick(now);
  claims_.HearAll(Replace(engine, now), given, now);
}

Member& Ledger::Replace(const Engine& engine, absl::Time now) {
  const Member* before = members_.Find(engine.party.name);
  if (before != nullptr && before->engine.party != engine.party) RemoveEngine(engine.party.name, now);
  const Member* same = members_.Find(engine.party);
  const bool same_arena = same != nullptr && same->engine.num_blocks == engine.num_blocks &&
                          same->engine.block_bytes == engine.block_bytes &&
                          same->engine.block_tokens == engine.block_tokens &&
                          same->engine.page_bytes == engine.page_bytes;
  Member& member = members_.Put(engine);
  if (same == nullptr) member.here_since = now;
  if (same_arena) return member;
  ForgetLeasesOf(member.id);  // extents of an arena with another geometry mean nothing now
  member.policy = engine.num_blocks < 1 || engine.block_tokens < 1
                      ? nullptr
                      : elastic::CreatePolicy(options_.elastic,
                                              {.num_blocks = engine.num_blocks, .block_tokens = engine.block_tokens});
  return member;
}

void Ledger::ForgetLeasesOf(PartyId donor) {
  for (const Record* record : RecordsOf(donor)) {
    if (record->donor == donor) table_.MustStep(record->lease.id, LeaseState::kReleased);
  }
}

void Ledger::RemoveEngine(const std::string& name, absl::Time now, bool in_order) {
  Tick(now);
  const Member* member = members_.Find(name);
  if (member == nullptr) return;
  const PartyId party = member->id;
  ForgetLeasesOf(party);
  for (const Record* record : RecordsOf(party)) {
    if (in_order || !record->lease.epoch.has_value()) table_.AskToRevoke(record->lease.id, RevokeReason::kBorrowerGone);
  }
  members_.Erase(name);
}

void Ledger::SetReady(const std::string& name, bool ready) {
  if (Member* member = members_.Find(name)) member->engine.ready = ready;
}

absl::Status Ledger::ReportWindow(const Party& who, const elastic::Demand& demand, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, members_.Require(who));
  if (std::min({demand.used_blocks, demand.waiting_blocks, demand.window_max_request_tokens, demand.window_peak_blocks,
                demand.cache_blocks}) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("window of ", who.name, ": used ", demand.used_blocks, ", waiting ", demand.waiting_blocks,
                     ", longest ", demand.window_max_request_tokens, ", peak ", demand.window_peak_blocks, ", cache ",
                     demand.cache_blocks, "; wanted none of them below 0"));
  }
  member->idle = demand.used_blocks == 0 && demand.waiting_blocks == 0;
  if (member->idle) member->ForgetRequest();  // what it was for has ended
  if (member->policy == nullptr) return absl::OkStatus();
  // An engine that needs more than its arena lends nothing, however much more it is. Capped, so that no sum of reported
  // numbers can overflow.
  elastic::Demand counted = demand;
  for (int64_t* blocks :
       {&counted.used_blocks, &counted.waiting_blocks, &counted.window_peak_blocks, &counted.cache_blocks}) {
    *blocks = std::min(*blocks, member->engine.num_blocks);
  }
  member->policy->Report(counted, now);
  return absl::OkStatus();
}

absl::StatusOr<LeaseResponse> Ledger::RequestLease(const Party& who, const LeaseRequest& request, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, members_.Require(who));
  Tick(now);
  return allocation_.Request(*member, request, now);
}

absl::StatusOr<std::vector<LeaseId>> Ledger::ScaleUp(const Party& who, int64_t need_blocks, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, members_.Require(who));
  if (need_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("need_blocks is ", need_blocks, ", wanted more than 0"));
  }
  return taking_back_.Order(*member, need_blocks, now);
}

std::vector<BorrowerWeight> Ledger::WeightsFor(const Party& donor, absl::Time now) const {
  const Member* member = members_.Find(donor);
  return member == nullptr ? std::vector<BorrowerWeight>() : taking_back_.Weights(*member, now);
}

absl::Status Ledger::ReportLease(const Party& who, const Lease& lease, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, members_.Require(who));
  const Record* known = table_.Find(lease.id);
  const bool answers = known != nullptr && !known->lease.epoch.has_value();
  Member* const borrower = answers ? members_.Find(known->borrower) : nullptr;
  RETURN_IF_ERROR(claims_.Hear(*member, lease, now));
  if (answers) member->answered_at = now;
  if (borrower != nullptr && lease.state == LeaseState::kGranted) borrower->granted_at = now;
  return absl::OkStatus();
}

absl::StatusOr<LeaseLimit> Ledger::LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                              absl::Time now) {
  Tick(now);
  return limits_.Set(model_name, max_borrowed_bytes, options_.wall_time ? options_.wall_time(now) : now);
}

absl::Status Ledger::RevokeLease(LeaseId id, absl::Time now) {
  Tick(now);
  if (table_.Find(id) == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "lease ", id.value(), " is unknown or has ended; swiftcachectl lease ls shows those that have not"));
  }
  table_.AskToRevoke(id, RevokeReason::kOperator);
  return absl::OkStatus();
}

// A donor clears what was offered, and answers, piece by piece: it is silent when none has been answered for so long.
void Ledger::Tick(absl::Time now) {
  table_.ForgetDeclined(now);
  for (const LeaseId id : table_.Unanswered(now)) {
    Member& donor = *members_.Find(table_.Find(id)->donor);
    if (const absl::Time answer_by = donor.answered_at + options_.offer_timeout; answer_by > now) {
      table_.SetAnswerBy(id, answer_by);
      continue;
    }
    donor.silent_until = now + options_.decline_backoff;
    claims_.EndOffer(id, now);
  }
}

std::vector<Lease> Ledger::Snapshot() const {
  std::vector<Lease> leases;
  for (const auto& [id, record] : table_.all()) leases.push_back(record->lease);
  return leases;
}

std::vector<Lease> Ledger::LeasesOf(const std::string& instance_id) const {
  std::vector<Lease> leases;
  for (const PartyId party : parties_.OfInstance(instance_id)) {
    for (const Record* record : RecordsOf(party)) leases.push_back(record->lease);
  }
  return leases;
}

// Those that the party gives, then those that it takes.
std::vector<const Record*> Ledger::RecordsOf(PartyId party) const {
  std::vector<const Record*> records;
  for (const Holding* holding : {&table_.LentBy(party), &table_.BorrowedBy(party)}) {
    for (const Places* places : {&holding->stay, &holding->revoking}) {
      for (const auto& [place, record] : *places) records.push_back(record);
    }
  }
  return records;
}

absl::Status Ledger::CheckInvariants() const {
  RETURN_IF_ERROR(table_.CheckInvariants());
  RETURN_IF_ERROR(limits_.CheckInvariants());
  for (const auto& [id, record] : table_.all()) RETURN_IF_ERROR(CheckAgainstMembers(record->lease));
  return absl::OkStatus();
}

absl::Status Ledger::CheckAgainstMembers(const Lease& lease) const {
  const auto broken = [&](const char* what) {
    return absl::InternalError(absl::StrCat("lease ", lease.id.value(), " of donor ", lease.donor.name, ": ", what));
  };
  const Member *donor = members_.Find(lease.donor), *borrower = members_.Find(lease.borrower);
  if (donor == nullptr) return broken("its donor is not there");
  const Engine& engine = donor->engine;
  if (lease.extent.end() > engine.num_blocks) return broken("reaches beyond the arena");
  if (lease.num_bytes != lease.extent.num_blocks * engine.block_bytes) return broken("num_bytes is not its blocks'");
  if (lease.extent.first_block * engine.block_bytes % engine.page_bytes != 0) return broken("begins within a page");
  if (lease.num_bytes % engine.page_bytes != 0) return broken("ends within a page");
  if (lease.capability.empty()) return broken("has no capability");
  if (borrower == nullptr && lease.state == LeaseState::kOffered) return broken("is offered to nobody who is there");
  if (borrower != nullptr && lease.borrower_blocks * borrower->engine.block_bytes > lease.num_bytes) {
    return broken("holds fewer bytes than its borrower's blocks");
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::broker::ledger
