// SPDX-License-Identifier: Apache-2.0
// Follows the broker's Watch: a snapshot, then changes in order. After a lost stream or a gap the sink hears so, and
// keeps what it knows until a new stream has brought a snapshot.
//
//   auto watcher = BrokerWatcher::Create({.address = "127.0.0.1:50050", .watcher = "gateway"}, *fleet);
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gateway/fleet/cluster.h"

namespace swiftcache::gateway::rpc {

/// Thread-safety: safe. Ownership: owns one thread, which calls the sink; borrows the sink. The destructor ends both.
/// Errors: none reach the caller; each lost stream is logged and followed by a new one.
class BrokerWatcher {
 public:
  struct Options {
    std::string address;
    std::string watcher = "gateway";  // for the broker's log
    absl::Duration min_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Milliseconds(200);  // also between attempts to connect
  };
  static std::unique_ptr<BrokerWatcher> Create(const Options& options, fleet::ClusterSink& sink);
  virtual ~BrokerWatcher() = default;
};

}  // namespace swiftcache::gateway::rpc
