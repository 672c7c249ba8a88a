// SPDX-License-Identifier: Apache-2.0
// The gateway's metrics of requests.
//
//   RelayMetrics relay_metrics(metrics);
//   relay_metrics.Ended("smollm2-chat", absl::OkStatus(), absl::Seconds(2));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"

namespace swiftcache::gateway::relay {

/// Thread-safety: safe. Ownership: borrows the registry. Errors: none. Units: seconds.
/// `model_name` is "" for requests that named no served model, so that clients cannot make new labels.
class RelayMetrics {
 public:
  explicit RelayMetrics(Metrics& metrics);
  void Started() { running_.Increment(); }
  void FirstToken(const std::string& model_name, absl::Duration time_to_first_token);
  void Retried(const std::string& model_name);
  /// A request that was started has ended.
  void Ended(const std::string& model_name, const absl::Status& status, absl::Duration latency);
  /// A request was refused before it was started.
  void Refused(const std::string& model_name, const absl::Status& status);

 private:
  void Count(const std::string& model_name, const absl::Status& status);

  Metrics& metrics_;
  prometheus::Gauge& running_;
};

}  // namespace swiftcache::gateway::relay
