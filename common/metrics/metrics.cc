// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>

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

std::shared_ptr<Metrics> Metrics::Part(const Labels& labels) {
  const auto leave = [this](Metrics* part) {
    {
      absl::MutexLock lock(&mutex_);
      parts_.erase(part);
    }
    delete part;
  };
  std::shared_ptr<Metrics> part(new Metrics(Merged(labels)), leave);
  absl::MutexLock lock(&mutex_);
  parts_[part.get()] = part;
  return part;
}

// All metrics of one name are one family, whatever parts they are in.
std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  std::vector<std::shared_ptr<const Metrics>> parts;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [address, weak] : parts_) {
      if (std::shared_ptr<const Metrics> part = weak.lock()) parts.push_back(std::move(part));
    }
  }
  std::map<std::string, size_t> places;
  for (const prometheus::MetricFamily& family : families) places.emplace(family.name, places.size());
  for (const auto& part : parts) {
    for (prometheus::MetricFamily& family : part->Collect()) {
      const auto [place, is_new] = places.try_emplace(family.name, families.size());
      if (is_new) {
        families.push_back(std::move(family));
      } else {
        std::ranges::move(family.metric, std::back_inserter(families[place->second].metric));
      }
    }
  }
  return families;
}

std::string Metrics::Serialize() const { return prometheus::TextSerializer().Serialize(Collect()); }

}  // namespace swiftcache
