// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <prometheus/text_serializer.h>

namespace swiftcache {

const std::vector<double> kTtftBuckets = {0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15,
                                          0.2,   0.25,  0.35, 0.5,  0.75, 1,    1.5,  2,    2.5, 3.5,
                                          5,     7.5,   10,   20,   40,   80,   160,  640,  2560};
const std::vector<double> kInterTokenBuckets = {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03,
                                                0.04,  0.05,   0.075, 0.1,    0.15, 0.2,   0.3,  0.4,   0.5,
                                                0.75,  1,      2.5,   5,      7.5,  10,    20,   40,    80};
const std::vector<double> kRequestBuckets = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                             15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};

Metrics::Labels Metrics::Merged(const Labels& labels) const {
  Labels all = labels;
  all.insert(labels_.begin(), labels_.end());
  return all;
}

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(Merged(labels));
}

prometheus::Gauge& Metrics::Gauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(Merged(labels));
}

OptionalGauge Metrics::OptionalGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return {prometheus::BuildGauge().Name(name).Help(help).Register(registry_), Merged(labels)};
}

void RaiseTo(prometheus::Counter& counter, double total) {
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

void OptionalGauge::Set(std::optional<double> value) {
  if (value) {
    if (gauge_ == nullptr) gauge_ = &family_->Add(labels_);
    gauge_->Set(*value);
  } else if (gauge_ != nullptr) {
    family_->Remove(std::exchange(gauge_, nullptr));
  }
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const std::vector<double>& buckets, const Labels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(Merged(labels), buckets);
}

std::string Metrics::Serialize() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

}  // namespace swiftcache
