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

absl::Status Tables::Register(const membership::EngineInfo& info, const std::vector<ledger::Lease>& held,
                              absl::Time now) {
  const bool copy = engines_.Knows(info, now);
  const absl::Status status = copy ? absl::OkStatus() : engines_.Register(info, now);
  Settle(now);  // the ledger hears first of those who died
  if (status.ok() && !copy) Enter(info, held, now);
  Settle(now);
  return status;
}

void Tables::Enter(const membership::EngineInfo& info, const std::vector<ledger::Lease>& held, absl::Time now) {
  const std::optional<EngineStatus> status = engines_.Find(info.name);
  leases_.Enter(ToLedger(info, status.has_value() && status->info.state == EngineState::kReady), held, now);
}

absl::Status Tables::Heartbeat(const Caller& caller, const membership::EngineLoad& load, absl::Time now) {
  if (const absl::Status status = CheckIncarnation(caller); !status.ok()) return absl::NotFoundError(status.message());
  const absl::Status status = engines_.Heartbeat(caller.name, caller.instance_id, load, now);
  Settle(now);
  return status;
}

void Tables::Deregister(const std::string& name, const std::string& instance_id, absl::Time now) {
  engines_.Deregister(name, instance_id);
  Settle(now);
}

absl::StatusOr<int64_t> Tables::ReportWindow(const Caller& caller, const elastic::Demand& demand, absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  return leases_.ReportWindow(PartyOf(caller), demand, now);
}

absl::StatusOr<ledger::Answer> Tables::RequestLease(const Caller& caller, const ledger::LeaseRequest& request,
                                                    absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  absl::StatusOr<ledger::Answer> answer = leases_.RequestLease(PartyOf(caller), request, now);
  Settle(now);
  return answer;
}

absl::StatusOr<std::vector<ledger::LeaseId>> Tables::ScaleUp(const Caller& caller, int64_t need_blocks,
                                                             absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  return leases_.ScaleUp(PartyOf(caller), need_blocks, now);
}

absl::Status Tables::ReportLease(const Caller& caller, const ledger::LeaseReport& report, absl::Time now) {
  RETURN_IF_ERROR(CheckIncarnation(caller));
  const absl::Status status = leases_.ReportLease(PartyOf(caller), report, now);
  Settle(now);
  return status;
}

absl::Status Tables::LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                absl::Time now) {
  const absl::Status status = leases_.LimitLease(model_name, max_borrowed_bytes, now);
  const ledger::LeaseLimit limit{model_name, max_borrowed_bytes};
  if (status.ok()) Add(limit, limit);
  Settle(now);
  return status;
}

absl::Status Tables::RevokeLease(ledger::LeaseId lease, absl::Time now) {
  const absl::Status status = leases_.RevokeLease(lease, now);
  Settle(now);
  return status;
}

void Tables::Tick(absl::Time now) {
  engines_.Expire(now);
  leases_.Tick(now);
  Settle(now);
}

absl::Time Tables::NextDeadline() const {
  return std::min(engines_.NextDeath().value_or(absl::InfiniteFuture()),
                  leases_.NextDeadline().value_or(absl::InfiniteFuture()));
}

void Tables::Forgive(absl::Duration lateness) {
  engines_.Forgive(lateness);
  leases_.Forgive(lateness);
}

// Tells the ledger what the membership saw, and makes news of all.
void Tables::Settle(absl::Time now) {
  for (const membership::Change& change : engines_.TakeChanges()) {
    if (const auto* status = std::get_if<EngineStatus>(&change)) {
      leases_.SetReady(status->info.name, status->info.state == EngineState::kReady);
      Add(*status, *status);
    } else {
      const auto& removed = std::get<Removed>(change);
      leases_.Leave(removed.name, now);
      Add(WatchEvent::Gone{.name = removed.name, .died = removed.died}, removed);
    }
  }
  for (const ledger::Change& change : leases_.TakeChanges()) Add(change.lease, change);
}

void Tables::Add(decltype(WatchEvent::what) what, decltype(News::change) change) {
  news_.push_back({.event = {incarnation_, ++version_, std::move(what)}, .change = std::move(change)});
}

WatchEvent Tables::Snapshot() const {
  return {incarnation_, version_, WatchEvent::Snapshot{engines_.Snapshot(), leases_.Snapshot(), leases_.limits()}};
}

std::vector<News> Tables::TakeNews() { return std::exchange(news_, {}); }

}  // namespace swiftcache::broker::loop
