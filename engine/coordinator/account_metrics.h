// SPDX-License-Identifier: Apache-2.0
// A donor's accounts as metrics: how much it lent to the engines of each model, and why that ended.
//
//   AccountMetrics metrics(registry);
//   metrics.Set(coordinator.Accounts());   // before each scrape
#pragma once

#include <array>
#include <map>
#include <string>

#include "common/metrics/metrics.h"
#include "engine/lease/account.h"

namespace swiftcache::engine::coordinator {

/// A model's are there from its first lease on. Thread-safety: none, one call at a time. Ownership: borrows the registry. Errors: none.
class AccountMetrics {
 public:
  explicit AccountMetrics(Metrics& registry) : registry_(registry) {}

  void Set(const std::map<std::string, lease::Account>& accounts);

 private:
  struct Counters {
    Counters(Metrics& registry, const std::string& model);
    prometheus::Counter& byte_seconds;
    std::array<prometheus::Counter*, lease::kEndings.size()> released = {}, fenced = {};
  };

  Metrics& registry_;
  std::map<std::string, Counters> counters_;  // by model
};

}  // namespace swiftcache::engine::coordinator
