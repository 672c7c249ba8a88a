// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/relay_metrics.h"

namespace swiftcache::gateway::relay {

RelayMetrics::RelayMetrics(Metrics& metrics)
    : metrics_(metrics), running_(metrics.Gauge("swiftcache_gateway_running_requests", "Requests under way.")) {}

void RelayMetrics::FirstToken(const std::string& model_name, absl::Duration time_to_first_token) {
  metrics_
      .Histogram("swiftcache_gateway_time_to_first_token_seconds",
                 "From a request's arrival at the gateway to its first token leaving it.", kTtftBuckets,
                 {{"model_name", model_name}})
      .Observe(absl::ToDoubleSeconds(time_to_first_token));
}

void RelayMetrics::Retried(const std::string& model_name) {
  metrics_
      .Counter("swiftcache_gateway_retries_total", "Requests sent to another engine before their first token.",
               {{"model_name", model_name}})
      .Increment();
}

void RelayMetrics::Ended(const std::string& model_name, const absl::Status& status, absl::Duration latency) {
  running_.Decrement();
  Count(model_name, status);
  metrics_
      .Histogram("swiftcache_gateway_e2e_request_latency_seconds", "From a request's arrival to its end.",
                 kRequestBuckets, {{"model_name", model_name}})
      .Observe(absl::ToDoubleSeconds(latency));
}

void RelayMetrics::Refused(const std::string& model_name, const absl::Status& status) { Count(model_name, status); }

void RelayMetrics::Count(const std::string& model_name, const absl::Status& status) {
  metrics_
      .Counter("swiftcache_gateway_requests_total", "Requests that ended, by status code.",
               {{"model_name", model_name}, {"code", absl::StatusCodeToString(status.code())}})
      .Increment();
}

}  // namespace swiftcache::gateway::relay
