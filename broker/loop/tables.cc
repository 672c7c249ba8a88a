// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/tables.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::broker::loop {
namespace {

using membership::EngineState;
using membership::EngineStatus;
using membership::Removed;

ledger::Party PartyOf(const Caller& caller) { return {caller.name, caller.instance_id}; }

ledger::Engine ToLedger(const membership::EngineInfo& info, bool ready) {
  return {.party = {info.name, info.instance_id},
          .model_name = info.model_name,
          .node_id = info.node_id,
          .channel = info.lease_channel,
          .page_bytes = info.page_bytes,
          .block_bytes = info.kv.block_bytes,
          .block_tokens = info.kv.block_tokens,
          .num_blocks = info.kv.num_blocks,
          .never_lent_blocks = info.never_lent_blocks,
          .ready = ready};
}

}  // namespace

Tables::Tables(const Options& options)
    : incarnation_(options.incarnation),
      engines_(options.membership),
      leases_(options.ledger, options.new_capability) {}

absl::Status Tables::CheckIncarnation(const Caller& caller) const {
  if (caller.incarnation == incarnation_) return absl::OkStatus();
  return absl::UnavailableError("the broker is of another incarnation; register again, then ask again");
}

absl::Status Tables::Register(const Registration& registration, absl::Time now) {
  const membership::EngineInfo& info = registration.info;
  const bool old = engines_.IsOldRegistration(info, now);
  const absl::Status status = old ? absl::OkStatus() : engines_.Register(info, now);
  CollectChanges(now);  // the ledger removes engines that died before it adds one of the same name
  if (status.ok() && !old) AddToLedger(registration, now);
  CollectChanges(now);
  return status;
}

void Tables::AddToLedger(const Registration& registration, absl::Time now) {
  for (const ledger::LeaseLimit& limit : registration.limits) {
    if (leases_.LearnLimit(limit)) AddChange(limit);
  }
  const std::optional<EngineStatus> status = engines_.Find(registration.info.name);
  const bool ready = status.has_value() && status->info.state == EngineState::kReady;
  leases_.AddEngine(ToLedger(registration.info, ready), registration.given, now);
}

absl::Status Tables::Heartbeat(const Caller& caller, const membership::LoadReport& load, absl::Time now) {
  if (const absl::Status status = CheckIncarnation(caller); !status.ok()) return absl::NotFoundError(status.message());
  const absl::Status status = engines_.Heartbeat(caller.name, caller.instance_id, load, now);
  CollectChanges(now);
  return status;
}

std::vector<ledger::BorrowerWeight> Tables::WeightsFor(const Caller& donor, absl::Time now) const {
  return leases_.WeightsFor(PartyOf(donor), now);
}

void Tables::Deregister(const std::string& name, const std::string& instance_id, absl::Time now) {
  engines_.Deregister(name, instance_id);
  CollectChanges(now);
}

absl::Status Tables::ReportWindow(const Caller& caller, const elastic::Demand& demand, absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  return leases_.ReportWindow(PartyOf(caller), demand, now);
}

absl::StatusOr<ledger::LeaseResponse> Tables::RequestLease(const Caller& caller, const ledger::LeaseRequest& request,
                                                           absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  absl::StatusOr<ledger::LeaseResponse> answer = leases_.RequestLease(PartyOf(caller), request, now);
  CollectChanges(now);
  return answer;
}

absl::StatusOr<std::vector<ledger::LeaseId>> Tables::ScaleUp(const Caller& caller, int64_t need_blocks,
                                                             absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  return leases_.ScaleUp(PartyOf(caller), need_blocks, now);
}

absl::Status Tables::ReportLease(const Caller& caller, const ledger::Lease& lease, absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  const absl::Status status = leases_.ReportLease(PartyOf(caller), lease, now);
  CollectChanges(now);
  return status;
}

absl::Status Tables::LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                absl::Time now) {
  const absl::StatusOr<ledger::LeaseLimit> limit = leases_.LimitLease(model_name, max_borrowed_bytes, now);
  if (limit.ok()) AddChange(*limit);
  CollectChanges(now);
  return limit.status();
}

absl::Status Tables::RevokeLease(ledger::LeaseId lease, absl::Time now) {
  const absl::Status status = leases_.RevokeLease(lease, now);
  CollectChanges(now);
  return status;
}

void Tables::Tick(absl::Time now) {
  engines_.Expire(now);
  leases_.Tick(now);
  CollectChanges(now);
}

absl::Time Tables::NextDeadline() const {
  return std::min(engines_.NextExpiry().value_or(absl::InfiniteFuture()), leases_.NextDeadline());
}

void Tables::PostponeDeadlines(absl::Duration lateness) {
  engines_.PostponeDeadlines(lateness);
  leases_.PostponeDeadlines(lateness);
}

// Tells the ledger what the membership saw, and numbers all changes for the watchers.
void Tables::CollectChanges(absl::Time now) {
  for (const membership::Change& change : engines_.TakeChanges()) {
    if (const auto* status = std::get_if<EngineStatus>(&change)) {
      leases_.SetReady(status->info.name, status->info.state == EngineState::kReady);
      AddChange(*status);
    } else {
      const auto& removed = std::get<Removed>(change);
      leases_.RemoveEngine(removed.name, now, /*in_order=*/!removed.died);
      AddChange(removed);
    }
  }
  for (const ledger::Change& change : leases_.TakeChanges()) AddChange(change.lease, change.before);
}

void Tables::AddChange(decltype(WatchEvent::what) what, std::optional<ledger::LeaseState> before) {
  changes_.push_back({.event = {incarnation_, std::move(what), ++last_change_}, .before = before});
}

WatchEvent Tables::Snapshot(const std::string& instance_id) const {
  if (instance_id.empty()) {
    return {incarnation_, WatchEvent::Snapshot{engines_.Snapshot(), leases_.Snapshot(), leases_.limits()},
            last_change_};
  }
  return {incarnation_, WatchEvent::Snapshot{{}, leases_.LeasesOf(instance_id), leases_.limits()}, last_change_};
}

std::vector<TableChange> Tables::TakeChanges() { return std::exchange(changes_, {}); }

}  // namespace swiftcache::broker::loop
