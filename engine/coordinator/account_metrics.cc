// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/account_metrics.h"

namespace swiftcache::engine::coordinator {
namespace {

using lease::Account;
using lease::Ending;

prometheus::Counter& EndsCounter(Metrics& registry, const std::string& model, Ending ending, const char* end) {
  return registry.Counter("swiftcache_lease_ends_total", "Leases of own memory that ended, by why and how",
                          {{"borrower_model", model}, {"reason", lease::EndingName(ending)}, {"end", end}});
}

}  // namespace

AccountMetrics::Counters::Counters(Metrics& registry, const std::string& model)
    : byte_seconds(registry.Counter("swiftcache_lease_byte_seconds_total",
                                    "Bytes of own memory on lease times the seconds that they were",
                                    {{"borrower_model", model}})) {
  for (const Ending ending : lease::kEndings) {
    released[static_cast<size_t>(ending)] = &EndsCounter(registry, model, ending, "released");
    fenced[static_cast<size_t>(ending)] = &EndsCounter(registry, model, ending, "fenced");
  }
}

void AccountMetrics::Set(const std::map<std::string, Account>& accounts) {
  for (const auto& [model, account] : accounts) {
    auto counters = counters_.find(model);
    if (counters == counters_.end()) counters = counters_.try_emplace(model, registry_, model).first;
    RaiseTo(counters->second.byte_seconds, static_cast<double>(account.byte_micros) / 1e6);
    for (size_t i = 0; i < account.ended.size(); ++i) {
      RaiseTo(*counters->second.released[i], static_cast<double>(account.ended[i].released));
      RaiseTo(*counters->second.fenced[i], static_cast<double>(account.ended[i].fenced));
    }
  }
}

}  // namespace swiftcache::engine::coordinator
