// SPDX-License-Identifier: Apache-2.0
// One Prometheus registry per process and the histogram buckets that dashboards for LLM servers expect.
//
//   Metrics metrics({{"model_name", "smollm2-chat"}, {"engine", "smollm2-chat"}});
//   auto& ttft = metrics.Histogram("swiftcache_time_to_first_token_seconds", "...", kTtftBuckets);
//   ttft.Observe(0.02);
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace swiftcache {

// vLLM's bucket bounds, with finer ones below and between. Units: seconds.
extern const std::vector<double> kTtftBuckets;
extern const std::vector<double> kInterTokenBuckets;
extern const std::vector<double> kRequestBuckets;  // queue time and end-to-end latency

/// A gauge that is there only while it has a value: one that nobody knows is absent, and not NaN or of yesterday.
/// Thread-safety: none. Ownership: belongs to its Metrics, which outlives it. Errors: none.
class OptionalGauge {
 public:
  void Set(std::optional<double> value);

 private:
  friend class Metrics;
  using Labels = std::map<std::string, std::string>;
  OptionalGauge(prometheus::Family<prometheus::Gauge>& family, Labels labels)
      : family_(&family), labels_(std::move(labels)) {}

  prometheus::Family<prometheus::Gauge>* family_;
  Labels labels_;
  prometheus::Gauge* gauge_ = nullptr;
};

/// Of a total that is counted elsewhere. One call at a time.
void RaiseTo(prometheus::Counter& counter, double total);

/// Names and values of one process. The same name and labels give the same metric.
/// Thread-safety: safe. Ownership: owns every metric; references live as long as this object, which outlives its parts.
/// Errors: a name that Prometheus does not allow, or one name with two types, is a bug of the caller (throws).
class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;
  /// `labels` are put on every metric.
  explicit Metrics(Labels labels = {}) : labels_(std::move(labels)) {}

  prometheus::Counter& Counter(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  swiftcache::OptionalGauge OptionalGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                                   const Labels& labels = {});

  /// Metrics that come and go together, in the time that one of them takes: `labels` are put on each, and they are in
  /// this object's text while the part lives. Shared, since a thread that makes the text may be the last to read it.
  std::shared_ptr<Metrics> Part(const Labels& labels) ABSL_LOCKS_EXCLUDED(mutex_);

  /// The text exposition format 0.0.4.
  std::string Serialize() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Labels Merged(const Labels& labels) const;
  std::vector<prometheus::MetricFamily> Collect() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Labels labels_;
  mutable absl::Mutex mutex_;
  std::map<const Metrics*, std::weak_ptr<const Metrics>> parts_ ABSL_GUARDED_BY(mutex_);
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
};

}  // namespace swiftcache
