// SPDX-License-Identifier: Apache-2.0
// What an engine has to say to the broker, and in which order: reports, windows and requests, one after the other. Who
// carries the calls, engine/rpc or the simulation, has the thread, the connection and the time; the rules are here.
//
//   calls.Push(news);
//   while (std::optional<BrokerCall> call = calls.TakeNext()) {
//     absl::Status status = Send(*call);
//     while (MustRepeat(*call, status)) ...wait..., status = Send(*call);
//     TellFailure(*call, status, events);
//   }
#pragma once

#include <deque>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "engine/coordinator/lease_broker.h"

namespace swiftcache::engine::coordinator {

using BrokerCall = std::variant<LeaseEvent, LeaseRequest, Window>;

/// Thread-safety: none. Ownership: a value. Errors: none.
class BrokerCalls {
 public:
  /// Of windows that wait the last counts.
  void Push(BrokerCall call);
  /// The broker has registered this engine, and may have no window of it: the last one is said again.
  void Registered();
  bool empty() const { return waiting_.empty(); }
  std::optional<BrokerCall> TakeNext();
  /// Of leases, that nobody has taken.
  int64_t num_reports() const;

 private:
  std::deque<BrokerCall> waiting_;
  std::optional<Window> window_;  // the last one
};

/// Whether the broker is away: nobody has taken the call, or nobody has answered it. CANCELLED is gRPC's answer to a call
/// that comes to a server which is just stopping.
bool NobodyAnswers(const absl::Status& status);

/// Whether the same is to be said again, before anything else: a report until the broker takes or refuses it, since later
/// ones depend on it; a window likewise, since an idle engine sends no other, and lends only after it has reported. It
/// refuses with INVALID_ARGUMENT, FAILED_PRECONDITION, PERMISSION_DENIED or NOT_FOUND. Not a request: the engine makes a
/// new one if it still needs it.
bool MustRepeat(const BrokerCall& call, const absl::Status& status);

/// For a call that has failed and is not repeated. OK: does nothing, an answer is told by who has it.
void TellFailure(const BrokerCall& call, const absl::Status& status, LeaseBrokerEvents& events);

}  // namespace swiftcache::engine::coordinator
