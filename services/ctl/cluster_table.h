// SPDX-License-Identifier: Apache-2.0
// A command's replica of the broker's tables, and its display as text.
//
//   ClusterTable cluster;
//   cluster.Apply(news);
//   std::cout << cluster.ShowEngines() << cluster.ShowLeases();
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "swiftcache/v1/broker.pb.h"

namespace swiftcache::services::ctl {

/// Thread-safety: none. Errors: none. REQUIRES: updates are applied in order.
class ClusterTable {
 public:
  /// What the engines of one model may borrow together, and do, those included that the broker does not see.
  struct ModelLimit {
    std::string model;
    int64_t limit_bytes = 0, borrowed_bytes = 0, engines = 0;
  };

  /// False: it shares nothing, or its reserve is all that it has.
  static bool Lends(const v1::EngineInfo& engine);

  /// A snapshot replaces everything; leases that have ended go.
  void Apply(const v1::WatchResponse& news);

  const std::map<std::string, v1::EngineStatus>& engines() const { return engines_; }
  const std::map<int64_t, v1::Lease>& leases() const { return leases_; }
  /// By donor and place in its memory; until the next Apply.
  std::vector<const v1::Lease*> LeasesInOrder() const;
  /// On lease, by engine: of its own memory, and of others'.
  std::map<std::string, int64_t> LentBytes() const;
  std::map<std::string, int64_t> BorrowedBytes() const;
  /// Of the models whose leases are limited, served or not.
  std::vector<ModelLimit> Limits() const;
  /// None: no limit.
  std::optional<int64_t> LimitBytes(const std::string& model) const;

  /// An engine a line: its memory, what it lends, borrows and may borrow, where prompts were found, how fast memory
  /// came back.
  std::string ShowEngines() const;
  /// A lease a line, by donor and place.
  std::string ShowLeases() const;
  /// A model a line, of those whose leases are limited; "" where none are.
  std::string ShowLimits() const;
  /// "3 engines, 2 leases of 24 MiB"
  std::string Summary() const;

 private:
  std::map<std::string, v1::EngineStatus> engines_;
  std::map<int64_t, v1::Lease> leases_;
  std::map<std::string, int64_t> limits_;  // in bytes, by model name
};

}  // namespace swiftcache::services::ctl
