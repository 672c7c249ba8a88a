// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/broker_calls.h"

#include <algorithm>
#include <utility>

namespace swiftcache::engine::coordinator {
namespace {

// All with which a broker refuses a call. Another error is of who stands between, or of a broker that has much to do.
bool IsRefusal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
         absl::IsNotFound(status);
}

}  // namespace

bool NobodyAnswers(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

void BrokerCalls::Push(BrokerCall call) {
  if (const auto* window = std::get_if<Window>(&call)) {
    window_ = *window;
    std::erase_if(waiting_, [](const BrokerCall& other) { return std::holds_alternative<Window>(other); });
  }
  waiting_.push_back(std::move(call));
}

void BrokerCalls::Registered() {
  if (window_.has_value()) Push(*window_);
}

std::optional<BrokerCall> BrokerCalls::TakeNext() {
  if (waiting_.empty()) return std::nullopt;
  BrokerCall call = std::move(waiting_.front());
  waiting_.pop_front();
  return call;
}

int64_t BrokerCalls::num_reports() const {
  return std::count_if(waiting_.begin(), waiting_.end(),
                       [](const BrokerCall& call) { return std::holds_alternative<LeaseEvent>(call); });
}

bool MustRepeat(const BrokerCall& call, const absl::Status& status) {
  return !status.ok() && !IsRefusal(status) && !std::holds_alternative<LeaseRequest>(call);
}

void TellFailure(const BrokerCall& call, const absl::Status& status, LeaseBrokerEvents& events) {
  if (status.ok()) return;
  if (const auto* news = std::get_if<LeaseEvent>(&call)) events.OnReportRefused(*news, status);
  if (std::holds_alternative<LeaseRequest>(call)) events.OnLeaseResponse(status);
}

}  // namespace swiftcache::engine::coordinator
