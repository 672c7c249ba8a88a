// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::broker::ledger {
namespace {

const char* ReportName(ReportKind kind) {
  switch (kind) {
    case ReportKind::kAccepted:
      return "accepted";
    case ReportKind::kDeclined:
      return "declined";
    case ReportKind::kActive:
      return "active";
    case ReportKind::kRevoking:
      return "revoking";
    case ReportKind::kReleased:
      return "released";
    case ReportKind::kFenced:
      return "fenced";
    case ReportKind::kLost:
      return "lost";
  }
  return "unknown";
}

bool IsBorrowersReport(ReportKind kind) { return kind == ReportKind::kActive || kind == ReportKind::kLost; }

absl::Status CheckReporter(const Party& who, const Lease& lease, ReportKind kind) {
  const Party& wanted = IsBorrowersReport(kind) ? lease.borrower : lease.donor;
  if (who == wanted) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("lease ", lease.id.value(), ": '", ReportName(kind),
                                                  "' is the word of ", wanted.name, " (", wanted.instance_id,
                                                  "), found ", who.name, " (", who.instance_id, ")"));
}

}  // namespace

Ledger::Ledger(const Options& options, NewCapability new_capability)
    : options_(options), new_capability_(std::move(new_capability)) {}

absl::StatusOr<Ledger::Member*> Ledger::FindMember(const Party& who) {
  const auto it = members_.find(who.name);
  if (it != members_.end() && it->second.engine.party == who) return &it->second;
  return absl::UnavailableError(absl::StrCat("engine '", absl::CHexEscape(who.name), "' instance '",
                                             absl::CHexEscape(who.instance_id),
                                             "' is not registered; register, then ask again"));
}

std::string Ledger::ModelOf(const std::string& engine_name) const {
  const auto it = members_.find(engine_name);
  return it == members_.end() ? std::string() : it->second.engine.model_name;
}

void Ledger::SetReady(const std::string& name, bool ready) {
  const auto it = members_.find(name);
  if (it != members_.end()) it->second.engine.ready = ready;
}

absl::StatusOr<int64_t> Ledger::ReportWindow(const Party& who, const elastic::Demand& demand, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, FindMember(who));
  if (std::min({demand.used_blocks, demand.waiting_blocks, demand.window_max_request_tokens, demand.window_peak_blocks,
                demand.cache_blocks}) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("window of ", who.name, ": used ", demand.used_blocks, ", waiting ", demand.waiting_blocks,
                     ", longest ", demand.window_max_request_tokens, ", peak ", demand.window_peak_blocks, ", cache ",
                     demand.cache_blocks, "; wanted none of them below 0"));
  }
  int64_t there = member->engine.num_blocks;
  for (const auto& [id, record] : table_.all()) {
    if (record.lease.borrower == who) there += record.lease.borrower_blocks;
  }
  if (demand.used_blocks > there) {
    return absl::InvalidArgumentError(absl::StrCat("window of ", who.name, ": used_blocks is ", demand.used_blocks,
                                                   ", wanted at most ", there, ", its own and those it borrows"));
  }
  member->idle = demand.used_blocks == 0 && demand.waiting_blocks == 0;
  if (member->policy == nullptr) return 0;
  // An engine that needs more than its arena lends nothing, however much more it is. Capped, so that no sum of reported
  // numbers can overflow.
  elastic::Demand counted = demand;
  counted.waiting_blocks = std::min(demand.waiting_blocks, member->engine.num_blocks);
  counted.window_peak_blocks = std::min(demand.window_peak_blocks, member->engine.num_blocks);
  counted.cache_blocks = std::min(demand.cache_blocks, member->engine.num_blocks);
  member->policy->Report(counted, now);
  return member->policy->LendableBlocks(table_.LentBlocks(who), {}, now);
}

absl::Status Ledger::ReportLease(const Party& who, const LeaseReport& report, absl::Time now) {
  RETURN_IF_ERROR(FindMember(who).status());
  Record* record = table_.Find(report.lease);
  if (record == nullptr && orphans_.contains({report.lease, who})) {
    return absl::UnavailableError(
        absl::StrCat("lease ", report.lease.value(), ": its donor has not come back yet; report again"));
  }
  if (record == nullptr) {
    return absl::NotFoundError(absl::StrCat("lease ", report.lease.value(), " is unknown or has ended; forget it"));
  }
  RETURN_IF_ERROR(CheckReporter(who, record->lease, report.kind));
  if (IsBorrowersReport(report.kind)) return ApplyBorrowerReport(*record, report.kind);
  return ApplyDonorReport(record->lease, report, now);
}

absl::Status Ledger::ApplyDonorReport(Lease& lease, const LeaseReport& report, absl::Time now) {
  switch (report.kind) {
    case ReportKind::kAccepted:
      return ApplyAcceptance(lease, report.epoch);
    case ReportKind::kDeclined:
      if (lease.epoch.has_value()) {
        return absl::FailedPreconditionError(absl::StrCat("lease ", lease.id.value(), " is ", StateName(lease.state),
                                                          " and was accepted, it cannot be declined: revoke it"));
      }
      EndOffer(lease.id, now);
      return absl::OkStatus();
    case ReportKind::kRevoking:
      if (lease.state == LeaseState::kRevoking) return absl::OkStatus();
      return table_.Step(lease.id, LeaseState::kRevoking);
    case ReportKind::kReleased:
      return table_.Step(lease.id, LeaseState::kReleased);
    case ReportKind::kFenced:
      return table_.Step(lease.id, LeaseState::kFenced);
    case ReportKind::kActive:
    case ReportKind::kLost:
      break;
  }
  return absl::InvalidArgumentError("no such report of a donor");
}

absl::Status Ledger::ApplyAcceptance(Lease& lease, Epoch epoch) {
  if (lease.epoch == epoch) return absl::OkStatus();
  if (!lease.epoch.has_value() && lease.state != LeaseState::kOffered) {  // it crossed the broker's request to revoke
    lease.epoch = epoch;
    table_.Report(lease);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckStep(lease.id.value(), lease.state, LeaseState::kGranted));
  lease.epoch = epoch;
  return table_.Step(lease.id, LeaseState::kGranted);
}

absl::Status Ledger::ApplyBorrowerReport(Record& record, ReportKind kind) {
  const Lease& lease = record.lease;
  if (kind == ReportKind::kActive) {
    if (lease.state != LeaseState::kActive) RETURN_IF_ERROR(table_.Step(lease.id, LeaseState::kActive));
    record.confirm_by = absl::InfiniteFuture();
    return absl::OkStatus();
  }
  if (lease.state == LeaseState::kRevoking) return absl::OkStatus();
  if (!lease.epoch.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("lease ", lease.id.value(), " is ", StateName(lease.state),
                                                      ", which cannot be lost: it was never the borrower's"));
  }
  BeginRevoking(lease.id);
  return absl::OkStatus();
}

absl::Status Ledger::LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                absl::Time now) {
  if (!max_borrowed_bytes.has_value()) {
    limits_.erase(model_name);
    return absl::OkStatus();
  }
  if (*max_borrowed_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_borrowed_bytes is ", *max_borrowed_bytes, ", wanted at least 0"));
  }
  Tick(now);
  limits_[model_name] = *max_borrowed_bytes;
  EnforceLimit(model_name, *max_borrowed_bytes);
  return absl::OkStatus();
}

std::vector<LeaseLimit> Ledger::limits() const {
  std::vector<LeaseLimit> all;
  for (const auto& [model_name, bytes] : limits_) all.push_back({model_name, bytes});
  return all;
}

void Ledger::EnforceLimit(const std::string& model_name, int64_t max_borrowed_bytes) {
  std::vector<const Record*> held;
  int64_t bytes = 0;
  for (const auto& [id, record] : table_.all()) {
    if (record.lease.state == LeaseState::kRevoking || ModelOf(record.lease.borrower.name) != model_name) continue;
    held.push_back(&record);
    bytes += record.lease.num_bytes;
  }
  std::sort(held.begin(), held.end(), [](const Record* a, const Record* b) { return a->order > b->order; });
  for (const Record* record : held) {
    if (bytes <= max_borrowed_bytes) break;
    bytes -= record->lease.num_bytes;
    BeginRevoking(record->lease.id);
  }
}

absl::Status Ledger::RevokeLease(LeaseId id, absl::Time now) {
  Tick(now);
  if (table_.Find(id) == nullptr) {
    return absl::NotFoundError(absl::StrCat("lease ", id.value(), " is unknown or has ended; list them again"));
  }
  BeginRevoking(id);
  return absl::OkStatus();
}

// Asks the donor to revoke: it learns of it from its Watch.
void Ledger::BeginRevoking(LeaseId id) {
  if (table_.Find(id)->lease.state != LeaseState::kRevoking) table_.MustStep(id, LeaseState::kRevoking);
}

// Ends an offer that was declined, or not answered: the extent is not offered again for decline_backoff.
void Ledger::EndOffer(LeaseId id, absl::Time now) {
  const Lease& lease = table_.Find(id)->lease;
  backoffs_.push_back({.donor = lease.donor, .extent = lease.extent, .until = now + options_.decline_backoff});
  table_.MustStep(id, LeaseState::kReleased);
}

void Ledger::Tick(absl::Time now) {
  std::erase_if(backoffs_, [&](const Backoff& backoff) { return backoff.until <= now; });
  const auto unanswered = [&](const Record& record) {
    return !record.lease.epoch.has_value() && record.answer_by <= now;
  };
  for (const LeaseId id : table_.Where(unanswered)) EndOffer(id, now);
  const auto unconfirmed = [&](const Record& record) { return record.confirm_by <= now; };
  for (const LeaseId id : table_.Where(unconfirmed)) {
    table_.Find(id)->confirm_by = absl::InfiniteFuture();
    BeginRevoking(id);
  }
  for (const auto& [claim, orphan] : orphans_) {
    if (orphan.until <= now) table_.ReportEnd(orphan.lease, orphan.lease.borrower);
  }
  std::erase_if(orphans_, [&](const auto& entry) { return entry.second.until <= now; });
}

std::optional<absl::Time> Ledger::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, record] : table_.all()) {
    if (!record.lease.epoch.has_value()) next = std::min(next, record.answer_by);
    next = std::min(next, record.confirm_by);
  }
  for (const auto& [claim, orphan] : orphans_) next = std::min(next, orphan.until);
  if (next == absl::InfiniteFuture()) return std::nullopt;
  return next;
}

void Ledger::PostponeDeadlines(absl::Duration lateness) {
  for (const LeaseId id : table_.Where([](const Record&) { return true; })) {
    Record& record = *table_.Find(id);
    record.answer_by += lateness;
    record.confirm_by += lateness;
  }
  for (auto& [claim, orphan] : orphans_) orphan.until += lateness;
}

std::vector<Lease> Ledger::Snapshot() const {
  std::vector<Lease> leases;
  for (const auto& [id, record] : table_.all()) leases.push_back(record.lease);
  return leases;
}

int64_t Ledger::BorrowedBytes(const std::string& model_name) const {
  int64_t bytes = 0;
  for (const auto& [id, record] : table_.all()) {
    if (ModelOf(record.lease.borrower.name) == model_name) bytes += record.lease.num_bytes;
  }
  return bytes;
}

absl::Status Ledger::CheckInvariants() const {
  RETURN_IF_ERROR(table_.CheckInvariants());
  for (const auto& [id, record] : table_.all()) {
    const Lease& lease = record.lease;
    const auto broken = [&, id = id](const char* what) {
      return absl::InternalError(absl::StrCat("lease ", id.value(), " of donor ", lease.donor.name, ": ", what));
    };
    const auto donor = members_.find(lease.donor.name);
    if (donor == members_.end() || donor->second.engine.party != lease.donor) return broken("its donor is not there");
    const Engine& engine = donor->second.engine;
    if (lease.extent.end() > engine.num_blocks) return broken("reaches beyond the arena");
    if (lease.num_bytes != lease.extent.num_blocks * engine.block_bytes) return broken("num_bytes is not its blocks'");
    if (lease.extent.first_block * engine.block_bytes % engine.page_bytes != 0) return broken("begins within a page");
    if (lease.num_bytes % engine.page_bytes != 0) return broken("ends within a page");
    if (lease.capability.empty()) return broken("has no capability");
    const auto borrower = members_.find(lease.borrower.name);
    const bool borrower_lives = borrower != members_.end() && borrower->second.engine.party == lease.borrower;
    const bool awaits = record.confirm_by != absl::InfiniteFuture();
    if (!borrower_lives && !awaits && lease.state != LeaseState::kRevoking) {
      return broken("its borrower is gone and it is not being revoked");
    }
    if (borrower_lives && lease.borrower_blocks * borrower->second.engine.block_bytes > lease.num_bytes) {
      return broken("holds fewer bytes than its borrower's blocks");
    }
  }
  for (const auto& [model, limit] : limits_) {
    int64_t bytes = 0;
    for (const auto& [id, record] : table_.all()) {
      if (record.lease.state != LeaseState::kRevoking && ModelOf(record.lease.borrower.name) == model)
        bytes += record.lease.num_bytes;
    }
    if (bytes > limit) return absl::InternalError(absl::StrCat("model ", model, " borrows ", bytes, " of ", limit));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::broker::ledger
