// SPDX-License-Identifier: Apache-2.0
// The broker as a coordinator sees it. engine/rpc implements it over gRPC, tests in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/kv/lease_id.h"
#include "engine/lease/lease.h"

namespace swiftcache::engine::coordinator {

/// What this engine, the donor, says of a lease: with the state that it has now. Thread-safety: a value.
struct LeaseEvent {
  lease::Lease lease;
  std::string reason = {};  // for the broker's log
};

/// A wish for memory on its way to the broker. Thread-safety: a value. Units: as named.
struct LeaseRequest {
  std::string key;  // the same for a request that got no answer and is made again
  int64_t want_bytes = 0;
  int64_t waiting_tokens = 0;  // the weight among borrowers
  int64_t held_bytes = 0;      // on lease by now
};

/// What an engine needed of its own arena lately (scale-down's input). Thread-safety: a value. Units: as named.
struct Window {
  int64_t used_blocks = 0, waiting_blocks = 0;
  int64_t max_request_tokens = 0, peak_blocks = 0;  // within the window
  int64_t cache_blocks = 0;                         // that its prompts of the last windows found worth keeping
  friend bool operator==(const Window&, const Window&) = default;
};

/// The answer to RequestLease. The leases themselves come with the news, when their donors have accepted them.
/// Thread-safety: a value. Units: as named.
struct LeaseResponse {
  int64_t offered_bytes = 0;
  int64_t lendable_bytes = 0;  // that donors could lend beyond those, or is on its way of earlier answers
  int64_t coming_bytes = 0;    // that is on its way back from others, for this engine
  std::string shortage;        // why it is less than was wanted
};

/// What the broker wants of every engine: it may change whenever an engine registers. The defaults hold before that.
/// Thread-safety: a value.
struct LeaseTerms {
  absl::Duration ttl = absl::Seconds(10);                // of a lease that nobody renews
  absl::Duration scale_down_window = absl::Seconds(60);  // Algorithm 1's t
};

/// Hears of the broker. Thread-safety: safe, whoever speaks with the broker calls it; nothing blocks. Ownership: they
/// borrow it until they have stopped. Errors: a call that failed is answered with its status; what is said too late is
/// ignored.
class LeaseBrokerEvents {
 public:
  virtual ~LeaseBrokerEvents() = default;
  virtual void OnTerms(const LeaseTerms& terms) = 0;
  /// A lease that this engine gives or takes is new or has changed.
  virtual void OnLease(const lease::Lease& lease) = 0;
  /// All that this engine gives or takes, as the broker knows them.
  virtual void OnLeases(const std::vector<lease::Lease>& leases) = 0;
  virtual void OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) = 0;
  /// The answer to that `question`: lease::Donor::TakeAdvised's; not OK: no answer in time.
  virtual void OnScaleUp(int64_t question, absl::StatusOr<std::vector<kv::LeaseId>> leases) = 0;
  /// The broker refuses what was said of a lease, for good.
  virtual void OnReportRefused(const LeaseEvent& news, const absl::Status& why) = 0;
};

/// Thread-safety: safe; nothing blocks. Ownership: borrows the events. Errors: through the events; a broker that is
/// away is no error: reports wait for it, in order, a wish behind them; else questions are answered with UNAVAILABLE.
class LeaseBroker {
 public:
  virtual ~LeaseBroker() = default;
  virtual void RequestLease(const LeaseRequest& request) = 0;
  /// `question`: another each time.
  virtual void RequestScaleUp(int64_t question, int64_t need_blocks) = 0;
  virtual void Report(const LeaseEvent& news) = 0;
  virtual void ReportWindow(const Window& window) = 0;
};

}  // namespace swiftcache::engine::coordinator
