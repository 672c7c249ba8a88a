// SPDX-License-Identifier: Apache-2.0
// BrokerLoop, the part about leases.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "broker/loop/broker_loop.h"
#include "common/log/log.h"

namespace swiftcache::broker::loop {

void BrokerLoop::ReportWindow(Caller caller, elastic::Demand demand, Reply reply) {
  Post(reply, [=, this] { reply(tables_.ReportWindow(caller, demand, Now())); });
}

void BrokerLoop::RequestLease(Caller caller, ledger::LeaseRequest request, RequestReply reply) {
  Post(reply, [=, this] {
    const absl::StatusOr<ledger::LeaseResponse> answer = tables_.RequestLease(caller, request, Now());
    if (answer.ok()) lease_metrics_.NoteRequest(caller.name, *answer);
    reply(answer);
  });
}

void BrokerLoop::ScaleUp(Caller caller, int64_t need_blocks, ScaleUpReply reply) {
  Post(reply, [=, this] {
    const auto leases = tables_.ScaleUp(caller, need_blocks, Now());
    if (leases.ok()) lease_metrics_.NoteScaleUp(leases->size());
    reply(leases);
  });
}

void BrokerLoop::ReportLease(Caller caller, ledger::Lease lease, std::string reason, Reply reply) {
  Post(reply, [=, this] {
    const absl::Status status = tables_.ReportLease(caller, lease, Now());
    if (!status.ok() || !reason.empty()) {
      LOG(INFO) << "lease " << lease.id << ", " << absl::CHexEscape(caller.name) << " says "
                << ledger::StateName(lease.state) << ": " << (reason.empty() ? "no reason" : reason) << "; " << status;
    }
    reply(status);
  });
}

void BrokerLoop::LimitLease(std::string model_name, std::optional<int64_t> max_borrowed_bytes, Reply reply) {
  Post(reply, [=, this] {
    const absl::Status status = tables_.LimitLease(model_name, max_borrowed_bytes, Now());
    if (status.ok()) {
      LOG(INFO) << "limit on what model " << model_name << " borrows: "
                << (max_borrowed_bytes.has_value() ? absl::StrCat(*max_borrowed_bytes, " bytes") : "none");
    }
    reply(status);
  });
}

void BrokerLoop::RevokeLease(ledger::LeaseId lease, Reply reply) {
  Post(reply, [=, this] { reply(tables_.RevokeLease(lease, Now())); });
}

}  // namespace swiftcache::broker::loop
