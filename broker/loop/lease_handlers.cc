// SPDX-License-Identifier: Apache-2.0
// BrokerLoop, the part about leases.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "broker/loop/broker_loop.h"
#include "common/log/log.h"

namespace swiftcache::broker::loop {

void BrokerLoop::ReportWindow(Caller caller, elastic::Demand demand, WindowReply reply) {
  if (!mailbox_.TryPush(WindowMessage{std::move(caller), demand, reply})) reply(Refusal());
}

void BrokerLoop::RequestLease(Caller caller, ledger::LeaseRequest request, RequestReply reply) {
  if (!mailbox_.TryPush(RequestMessage{std::move(caller), std::move(request), reply})) reply(Refusal());
}

void BrokerLoop::ScaleUp(Caller caller, int64_t need_blocks, ScaleUpReply reply) {
  if (!mailbox_.TryPush(ScaleUpMessage{std::move(caller), need_blocks, reply})) reply(Refusal());
}

void BrokerLoop::ReportLease(Caller caller, ledger::Lease lease, std::string reason, Reply reply) {
  if (!mailbox_.TryPush(ReportMessage{std::move(caller), std::move(lease), std::move(reason), reply})) reply(Refusal());
}

void BrokerLoop::LimitLease(std::string model_name, std::optional<int64_t> max_borrowed_bytes, Reply reply) {
  if (!mailbox_.TryPush(LimitMessage{std::move(model_name), max_borrowed_bytes, reply})) reply(Refusal());
}

void BrokerLoop::RevokeLease(ledger::LeaseId lease, Reply reply) {
  if (!mailbox_.TryPush(RevokeMessage{lease, reply})) reply(Refusal());
}

void BrokerLoop::Handle(WindowMessage& message) {
  message.reply(tables_.ReportWindow(message.caller, message.demand, Now()));
}

void BrokerLoop::Handle(RequestMessage& message) {
  const absl::StatusOr<ledger::LeaseResponse> answer = tables_.RequestLease(message.caller, message.request, Now());
  if (answer.ok()) lease_metrics_.NoteRequest(message.caller.name, *answer);
  message.reply(answer);
}

void BrokerLoop::Handle(ScaleUpMessage& message) {
  const auto leases = tables_.ScaleUp(message.caller, message.need_blocks, Now());
  if (leases.ok()) lease_metrics_.NoteScaleUp(leases->size());
  message.reply(leases);
}

void BrokerLoop::Handle(ReportMessage& message) {
  const absl::Status status = tables_.ReportLease(message.caller, message.lease, Now());
  if (!status.ok() || !message.reason.empty()) {
    LOG(INFO) << "lease " << message.lease.id << ", " << absl::CHexEscape(message.caller.name) << " says "
              << ledger::StateName(message.lease.state) << ": "
              << (message.reason.empty() ? "no reason" : message.reason) << "; " << status;
  }
  message.reply(status);
}

void BrokerLoop::Handle(LimitMessage& message) {
  const absl::Status status = tables_.LimitLease(message.model_name, message.max_borrowed_bytes, Now());
  if (status.ok()) {
    LOG(INFO) << "limit on what model " << message.model_name << " borrows: "
              << (message.max_borrowed_bytes.has_value() ? absl::StrCat(*message.max_borrowed_bytes, " bytes")
                                                         : "none");
  }
  message.reply(status);
}

void BrokerLoop::Handle(RevokeMessage& message) { message.reply(tables_.RevokeLease(message.lease, Now())); }

}  // namespace swiftcache::broker::loop
