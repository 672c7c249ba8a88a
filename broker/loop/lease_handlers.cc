// SPDX-License-Identifier: Apache-2.0
// BrokerLoop, the part about leases.
#include <utility>

#include "absl/strings/str_cat.h"
#include "broker/loop/broker_loop.h"
#include "common/log/log.h"

namespace swiftcache::broker::loop {

using membership::EngineState;
using membership::EngineStatus;

namespace {

ledger::Party PartyOf(const Caller& caller) { return {caller.name, caller.instance_id}; }

}  // namespace

void BrokerLoop::ReportWindow(Caller caller, elastic::Demand demand, WindowReply reply) {
  if (!queue_.TryPush(WindowMessage{std::move(caller), demand, reply})) reply(Refusal());
}

void BrokerLoop::RequestLease(Caller caller, ledger::LeaseRequest request, RequestReply reply) {
  if (!queue_.TryPush(RequestMessage{std::move(caller), std::move(request), reply})) reply(Refusal());
}

void BrokerLoop::ScaleUp(Caller caller, int64_t need_blocks, ScaleUpReply reply) {
  if (!queue_.TryPush(ScaleUpMessage{std::move(caller), need_blocks, reply})) reply(Refusal());
}

void BrokerLoop::ReportLease(Caller caller, ledger::LeaseReport report, std::string reason, Reply reply) {
  if (!queue_.TryPush(ReportMessage{std::move(caller), report, std::move(reason), reply})) reply(Refusal());
}

void BrokerLoop::LimitLease(std::string model_name, std::optional<int64_t> max_borrowed_bytes, Reply reply) {
  if (!queue_.TryPush(LimitMessage{std::move(model_name), max_borrowed_bytes, reply})) reply(Refusal());
}

void BrokerLoop::RevokeLease(ledger::LeaseId lease, Reply reply) {
  if (!queue_.TryPush(RevokeMessage{lease, reply})) reply(Refusal());
}

void BrokerLoop::Handle(WindowMessage& message) {
  if (const absl::Status status = CheckIncarnation(message.caller.incarnation); !status.ok()) {
    return message.reply(status);
  }
  message.reply(ledger_.ReportWindow(PartyOf(message.caller), message.demand, Now()));
}

void BrokerLoop::Handle(RequestMessage& message) {
  if (const absl::Status status = CheckIncarnation(message.caller.incarnation); !status.ok()) {
    return message.reply(status);
  }
  const absl::StatusOr<ledger::Answer> answer = ledger_.RequestLease(PartyOf(message.caller), message.request, Now());
  if (answer.ok()) lease_metrics_.NoteRequest(message.caller.name, *answer);
  message.reply(answer);
}

void BrokerLoop::Handle(ScaleUpMessage& message) {
  if (const absl::Status status = CheckIncarnation(message.caller.incarnation); !status.ok()) {
    return message.reply(status);
  }
  const auto leases = ledger_.ScaleUp(PartyOf(message.caller), message.need_blocks, Now());
  if (leases.ok()) lease_metrics_.NoteScaleUp(leases->size());
  message.reply(leases);
}

void BrokerLoop::Handle(ReportMessage& message) {
  if (const absl::Status status = CheckIncarnation(message.caller.incarnation); !status.ok()) {
    return message.reply(status);
  }
  const absl::Status status = ledger_.ReportLease(PartyOf(message.caller), message.report, Now());
  if (!status.ok() || !message.reason.empty()) {
    LOG(INFO) << "lease " << message.report.lease << ", " << message.caller.name
              << " says: " << (message.reason.empty() ? "no reason" : message.reason) << "; " << status;
  }
  message.reply(status);
}

void BrokerLoop::Handle(LimitMessage& message) {
  const absl::Status status = ledger_.LimitLease(message.model_name, message.max_borrowed_bytes, Now());
  if (status.ok()) {
    LOG(INFO) << "limit on what model " << message.model_name << " borrows: "
              << (message.max_borrowed_bytes.has_value() ? absl::StrCat(*message.max_borrowed_bytes, " bytes")
                                                         : "none");
  }
  message.reply(status);
}

void BrokerLoop::Handle(RevokeMessage& message) { message.reply(ledger_.RevokeLease(message.lease, Now())); }

// What the ledger hears of an engine that registered.
void BrokerLoop::EnterLedger(const membership::EngineInfo& info, const std::vector<ledger::Lease>& held) {
  const std::optional<EngineStatus> status = table_.Find(info.name);
  ledger_.Enter({.party = {info.name, info.instance_id},
                 .model_name = info.model_name,
                 .node_id = info.node_id,
                 .channel = info.lease_channel,
                 .page_bytes = info.page_bytes,
                 .block_bytes = info.kv.block_bytes,
                 .block_tokens = info.kv.block_tokens,
                 .num_blocks = info.kv.num_blocks,
                 .ready = status.has_value() && status->info.state == EngineState::kReady},
                held, Now());
}

void BrokerLoop::TellLedger(const membership::Change& change) {
  if (const auto* status = std::get_if<EngineStatus>(&change)) {
    ledger_.SetReady(status->info.name, status->info.state == EngineState::kReady);
  } else {
    ledger_.Leave(std::get<membership::Removed>(change).name, Now());
  }
}

}  // namespace swiftcache::broker::loop
