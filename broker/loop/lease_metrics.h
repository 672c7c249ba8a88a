// SPDX-License-Identifier: Apache-2.0
// What operators see of leases: counters, gauges, and one log line for every change of a lease's state.
//
//   LeaseMetrics lease_metrics(metrics);
//   for (const ledger::Change& change : changes) lease_metrics.Note(change.lease, change.before);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "broker/ledger/ledger.h"
#include "common/metrics/metrics.h"

namespace swiftcache::broker::loop {

/// Thread-safety: none; the loop's. Ownership: borrows the metrics. Errors: none.
class LeaseMetrics {
 public:
  explicit LeaseMetrics(Metrics& metrics);

  /// A lease is new (`before` is none), changed its state or ended. Counts the step, and the bytes on lease of its
  /// engines. The counters of a pair of engines are there from its first lease on, so that the first step is an increase.
  void Note(const ledger::Lease& lease, std::optional<ledger::LeaseState> before);
  /// A borrower's request was answered: counts it if memory was offered, and logs once per pair of engines that their
  /// unit is padded or that they have none.
  void NoteRequest(const std::string& borrower, const ledger::LeaseResponse& answer);
  /// Its pairs with others have no units any more, and no gauges of them.
  void EngineRemoved(const std::string& engine);
  /// A donor's ScaleUp was answered with so many leases.
  void NoteScaleUp(size_t leases);

 private:
  struct Unit {
    std::string told;  // in the log
    OptionalGauge bytes, wasted;
  };
  Unit NewUnit(const std::string& donor, const std::string& borrower);
  prometheus::Counter& CounterOf(const char* name, const ledger::Lease& lease);
  void AddLeased(const ledger::Lease& lease, int64_t bytes);

  Metrics& metrics_;
  prometheus::Counter &scale_up_, &scale_down_;
  std::map<std::pair<std::string, std::string>, Unit> units_;  // by donor and borrower
};

}  // namespace swiftcache::broker::loop
