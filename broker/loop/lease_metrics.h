// SPDX-License-Identifier: Apache-2.0
// What operators see of leases: counters, gauges, and one log line for every change of a lease's state.
//
//   LeaseMetrics lease_metrics(metrics);
//   for (const ledger::Change& change : changes) lease_metrics.Note(change.lease, change.before);
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "broker/ledger/ledger.h"
#include "common/metrics/metrics.h"

namespace swiftcache::broker::loop {

/// Who lends to whom is what donors say, and whom they name need not exist: the metrics of a pair of engines are there
/// while it has a lease, and while it is among the kIdlePairs that had one last. So an engine that starts again under
/// its name counts on, and what befell one that is gone can still be read.
/// Thread-safety: none; the loop's. Ownership: borrows the metrics. Errors: none.
class LeaseMetrics {
 public:
  static constexpr size_t kIdlePairs = 1024;

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
  using Names = std::pair<std::string, std::string>;  // a pair's: donor and borrower
  struct Pair {
    std::shared_ptr<Metrics> metrics;
    int64_t leases = 0;                 // that have not ended
    std::list<Names>::iterator idle{};  // of idle_, while there are none
  };
  struct Side {
    std::shared_ptr<Metrics> metrics;
    int64_t pairs = 0;  // that have it
  };
  struct Unit {
    std::string told;  // in the log
    OptionalGauge bytes, wasted;
  };
  Unit NewUnit(const std::string& donor, const std::string& borrower);
  /// The pair has one lease more.
  void Begin(const Names& names);
  /// The pair has one lease less.
  void End(const Names& names);
  void AddLeased(const Names& names, int64_t bytes);

  Metrics& metrics_;
  prometheus::Counter &scale_up_, &scale_down_;
  std::map<Names, Pair> pairs_;
  std::list<Names> idle_;        // the first has had no lease for the longest
  std::map<Names, Side> sides_;  // by engine and direction
  std::map<Names, Unit> units_;
};

}  // namespace swiftcache::broker::loop
